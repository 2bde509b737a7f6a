"""Stores of netCDF-C, with its attributes for Zarr and without: ``python make_netcdf.py DIRECTORY``."""

import json
import sys
from pathlib import Path

import netCDF4
import numpy as np
from _expected import Expected, any_bits

DIRECTORY = Path(sys.argv[1]).absolute() / f"netcdf-c-{netCDF4.__netcdf4libversion__}"


def attributes(node):
    path = node / ".zattrs"
    return json.loads(path.read_text()) if path.exists() else {}


def write(name, mode):
    random, path = np.random.default_rng(6), DIRECTORY / name
    path.parent.mkdir(parents=True, exist_ok=True)
    url = f"file://{path}#mode={mode},file"
    with netCDF4.Dataset(url, "w") as file:
        file.createDimension("y", 5)
        file.createDimension("x", 7)
        file.setncatts({"title": "sample", "version": 2})
        for kind in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"):
            variable = file.createVariable(kind, kind, ("y",), chunksizes=(3,), fill_value=7)
            variable.set_auto_maskandscale(False)
            variable[:3] = any_bits(random, kind, (3,))
        big = file.createVariable("big", ">f4", ("y", "x"), endian="big", chunksizes=(2, 4))
        big[:] = np.arange(35, dtype="f4").reshape(5, 7)
        packed = file.createVariable("packed", "i2", ("y", "x"), zlib=True, shuffle=True, fill_value=-99)
        packed.setncatts({"units": "K", "scale_factor": 0.5, "valid_range": np.array([0, 9], "i2")})
        packed.set_auto_maskandscale(False)
        packed[:] = np.arange(35, dtype="i2").reshape(5, 7)
        plain = file.createVariable("unshuffled", "i2", ("y", "x"), zlib=True, shuffle=False)
        plain[:] = np.arange(35, dtype="i2").reshape(5, 7)
        file.createVariable("scalar", "f8", ())[...] = 2.5
        file.createVariable("characters", "S1", ("y",))[:] = np.array([b"a", b"b", b"", b"d", b"e"])
        group = file.createGroup("inner/deep")
        group.createDimension("z", 2)
        group.createVariable("values", "i4", ("z", "x"))[:] = np.arange(14).reshape(2, 7)
        group.note = "in a group"
    expected = Expected(path)
    with netCDF4.Dataset(url) as file:
        file.set_auto_maskandscale(False)
        for group in (file, file["inner"], file["inner/deep"]):
            for variable in group.variables.values():
                read = np.asarray(variable[...])
                if variable.dtype is str:  # Without its attributes, netCDF-C takes characters for strings.
                    read = read.astype("S1")
                where = f"{group.path}/{variable.name}".strip("/")
                names = variable.dimensions or ("_scalar_",)  # What has no dimensions is stored with one.
                given = {"names": names, "attributes": attributes(path / where)}
                expected.array(where, read.reshape(read.shape or 1), **given)
            where = group.path.strip("/")
            expected.group(where, attributes(path / where))
    expected.save()


if __name__ == "__main__":
    write("nczarr", "nczarr")
    write("plain", "zarr")
