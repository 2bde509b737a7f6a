/* Native rows: reads and writes many chunks in one call that holds no lock of Python.
 *
 * xzarr3/io/native.py calls it through ctypes, with the structs Read and Write. Each field has 8 bytes: a number, or the
 * address of memory that the caller owns. Nothing else is kept between calls; descriptors, too, are the caller's.
 *
 * The contract of a row
 * - A row of a read is one chunk: a whole file, a part of an open file, or a part of bytes in memory. `offset` and
 *   `length` tell where its bytes are; `length` -1 is a chunk that is absent. The row has the boxes `begin[row]` to
 *   `begin[row + 1]`: `start` and `count` are elements of the chunk, `step` elements apart, and `place` is the byte of
 *   `out` at which the first of them belongs.
 * - A row of a write is one file: a chunk, or a shard of all its inner chunks. `count` elements of it lie in `source`,
 *   from byte `place` on; the others are the fill value. If `start` is not negative, they are a part of a chunk that
 *   begins there, and the others are those that are stored when the row has the lock of the file.
 * - After the call the status of a row is DONE, ABSENT (a read: its boxes hold the fill value; a write: it holds only
 *   the fill value and no file is there), or LEFT. A row is LEFT if anything was not as expected: a codec failed, a
 *   size was wrong, the system reported an error. The place of a LEFT row may hold anything; Python does the row again,
 *   and raises what there is to raise. A write that is LEFT has changed nothing.
 * - The call returns after the last row, or `until` milliseconds after it began. Rows that no thread began then keep
 *   their status; a call with the same `*next` goes on with them.
 *
 * What the caller promises: boxes lie inside their chunk and their places inside `out`; `ndim` is at most
 * MOST_DIMENSIONS; `scratch` has `scratch_size` bytes for each thread, as `xzarr3_scratch` counts them. What comes from
 * files is never trusted: every length is checked before it is used.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifndef F_OFD_SETLK /* Python writes where a lock does not belong to the open file. */
#define F_OFD_SETLK (-1)
#endif
#ifndef O_PATH /* Searching a directory needs less permission than reading it, where a system knows that. */
#define O_PATH O_RDONLY
#endif

typedef int64_t i64;
enum { CONTRACT = 5, MOST_DIMENSIONS = 32, MOST_NAME = 4096, MOST_THREADS = 64 };
enum { LEFT = 0, DONE = 1, ABSENT = 2, FAILED = -1, NONE = -2 };
enum { ZSTD, BLOSC, GZIP, CRC32C, SHUFFLE };
enum { READS, BYTES_READ, READ_TIME, CHUNKS, BYTES, TIME, COUNTS };

#define LOCK ".__lock" /* Ends the name of the file that becomes a value. */
#define FIRST ((i64)1 << 12) /* Bytes of a chunk of blosc that tell where its blocks are. */
#define AHEAD ((i64)1 << 18) /* Neighbours that begin within so many bytes are read in one call. */
#define INFLATE_STATE ((i64)1 << 18) /* Bytes of ISA-L's state, whose real size is less than half of that. */

/* Functions of the libraries that the codecs' packages bring; 0 for one that is not there. */
typedef struct {
    void *(*zstd_new_decoder)(void);
    size_t (*zstd_free_decoder)(void *);
    size_t (*zstd_decode)(void *, void *, size_t, const void *, size_t);
    void *(*zstd_new_encoder)(void);
    size_t (*zstd_free_encoder)(void *);
    size_t (*zstd_set)(void *, int, int);
    size_t (*zstd_encode)(void *, void *, size_t, const void *, size_t);
    int (*blosc_decode)(const void *, void *, size_t, int);
    int (*blosc_encode)(int, int, size_t, size_t, const void *, void *, size_t, const char *, size_t, int);
    int (*blosc_part)(const void *, int, int, void *);
    int (*inflate)(void *);
    uint32_t (*crc32)(uint32_t, const void *, uint64_t);
    uint32_t (*crc32c)(const void *, size_t);
} Libraries;

/* One codec between bytes and bytes. `most` bounds the bytes of its result. */
typedef struct {
    i64 kind, most;
    i64 first, second, third, fourth, fifth; /* Its parameters, see `encode_one` and `decode_one`. */
} Stage;

typedef struct {
    i64 ndim, itemsize, nbytes;
    i64 swap;    /* Width of the numbers whose bytes are stored in the other order; 0 for none. */
    i64 truth;   /* Whether elements are truth values, of which only 0 and 1 may be in memory. */
    i64 largest; /* Most stored bytes. */
    i64 room;    /* Most bytes between two codecs. */
    i64 number;  /* Number of codecs. */
    const Stage *stages; /* A read: the last codec first. A write: the first codec first. */
    const i64 *shape, *strides; /* The strides of the stored elements, along the array's dimensions. */
} Chunk;

/* What both kinds of work have. */
typedef struct {
    const Libraries *libraries;
    const Chunk *chunk;
    i64 fetches, threads, run, until, timed;
    const i64 *edges; /* The first row of each fetch and the end of the last one; 0 if a row is a fetch. */
    i64 *next;        /* The first fetch that no thread has taken; a thread takes `run` of them at a time. */
    char *scratch;
    i64 scratch_size;
    void **contexts; /* For each thread a decoder and an encoder of Zstandard; made here, freed by the caller. */
    i64 *counts;     /* COUNTS numbers, to which this call adds. */
    uint8_t *status;
} Work;

typedef struct {
    Work work;
    const char *prefix; /* The path of a file: prefix, then coordinates with separators. */
    i64 prefix_size, separator, coordinates, flags;
    i64 gap; /* Reading so many more bytes takes as long as one more call. */
    const i64 *coords;
    i64 *files;         /* Descriptors by file, -1 to open one; 0 to open and close one for each row. */
    const i64 *memory;  /* Address and size of the bytes, by file; 0 if they are in files. */
    const i64 *file;    /* The file of each row; 0 if a row is a file. */
    const i64 *offset, *length; /* 0 if a chunk is a whole file. A negative offset counts from the end. */
    const i64 *begin, *start, *count, *place, *step;
    char *out;
    const i64 *strides; /* Of `out`, along the dimensions of the chunk. */
    const char *fill;
} Read;

typedef struct {
    Work work;
    i64 folder; /* An open directory; names are relative to it. */
    const char *prefix;
    i64 prefix_size, separator, coordinates;
    const i64 *coords;
    i64 late; /* Whether only the closing of a file tells that the disk is full. */
    const i64 *start, *count, *place;
    const Chunk *stored; /* How a chunk is read of which only a part is given. */
    const char *source;
    const i64 *strides;
    const char *fill;
    i64 keep_empty;
    const i64 *inner; /* Inner chunks of a shard along each dimension; 0 if a row is a chunk. */
    i64 index_size, index_at_start, index_checked;
} Write;

typedef struct {
    const Work *work;
    const void *job;
    int (*row)(void *, i64, i64); /* Does some rows that begin with the first; returns how many. */
    void **contexts;
    char *source, *elements, *spare, *state; /* Parts of the scratch memory. */
    i64 counts[COUNTS];
    int depth, opened[MOST_DIMENSIONS + 1];  /* A write: the open directories below the folder... */
    i64 within[MOST_DIMENSIONS];             /* ...and the coordinates that name them. */
} Thread;

static i64 nanoseconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (i64)time.tv_sec * 1000000000 + time.tv_nsec;
}

static i64 started(const Thread *thread) { return thread->work->timed ? nanoseconds() : 0; }

static void counted(Thread *thread, int what, i64 bytes, i64 start) {
    thread->counts[what] += 1;
    thread->counts[what + 1] += bytes;
    if (thread->work->timed) thread->counts[what + 2] += nanoseconds() - start;
}

/* Boxes */

/* Whether the last dimensions, from `axis` on, lie without gaps in both; puts their size into `block`. */
static i64 outer_dimensions(i64 ndim, const i64 *count, const i64 *to, const i64 *from, i64 itemsize, i64 *block) {
    *block = itemsize;
    while (ndim > 0 && (count[ndim - 1] == 1 || (to[ndim - 1] == *block && from[ndim - 1] == *block)))
        *block *= count[--ndim];
    return ndim;
}

#define COPY_EACH(size) for (i64 at = 0; at < n; at++, to += a, from += b) memcpy(to, from, (size_t)(size))

static void copy_line(char *to, i64 a, const char *from, i64 b, i64 n, i64 block) {
    if (block == 1) COPY_EACH(1); /* Sizes that the compiler knows take no call. */
    else if (block == 2) COPY_EACH(2);
    else if (block == 4) COPY_EACH(4);
    else if (block == 8) COPY_EACH(8);
    else COPY_EACH(block);
}

static void copy_outer(char *to, const i64 *a, const char *from, const i64 *b, const i64 *count, i64 ndim, i64 block) {
    if (ndim == 0) memcpy(to, from, (size_t)block);
    else if (ndim == 1) copy_line(to, a[0], from, b[0], count[0], block);
    else
        for (i64 at = 0; at < count[0]; at++)
            copy_outer(to + at * a[0], a + 1, from + at * b[0], b + 1, count + 1, ndim - 1, block);
}

static void copy_box(char *to, const i64 *a, const char *from, const i64 *b, const i64 *count, i64 ndim, i64 itemsize) {
    i64 block;
    ndim = outer_dimensions(ndim, count, a, b, itemsize, &block);
    copy_outer(to, a, from, b, count, ndim, block);
}

/* Copies one element all over a box. */
static void fill_box(char *to, const i64 *a, const char *fill, const i64 *count, const Chunk *chunk) {
    static const i64 nowhere[MOST_DIMENSIONS];
    copy_outer(to, a, fill, nowhere, count, chunk->ndim, chunk->itemsize);
}

static int is_box_of(const char *from, const i64 *a, const i64 *count, i64 ndim, i64 block, const char *fill, i64 itemsize) {
    if (ndim == 0) return !memcmp(from, fill, (size_t)itemsize) && !memcmp(from, from + itemsize, (size_t)(block - itemsize));
    for (i64 at = 0; at < count[0]; at++)
        if (!is_box_of(from + at * a[0], a + 1, count + 1, ndim - 1, block, fill, itemsize)) return 0;
    return 1;
}

#define REVERSE_EACH(type, swap)                                                                                       \
    for (type value; size >= width; size -= width, bytes += width)                                                     \
        memcpy(&value, bytes, sizeof value), value = swap(value), memcpy(bytes, &value, sizeof value)

static void reverse_bytes(char *bytes, i64 size, i64 width) {
    if (width == 2) REVERSE_EACH(uint16_t, __builtin_bswap16);
    if (width == 4) REVERSE_EACH(uint32_t, __builtin_bswap32);
    if (width == 8) REVERSE_EACH(uint64_t, __builtin_bswap64);
}

/* Turns stored elements into those in memory. */
static void settle(const Chunk *chunk, char *bytes, i64 size) {
    if (chunk->swap) reverse_bytes(bytes, size, chunk->swap);
    if (chunk->truth)
        for (i64 at = 0; at < size; at++) bytes[at] = bytes[at] != 0;
}

/* Codecs. Each gets the size of its target and writes nothing beyond it; a negative result is a failure. */

static uint32_t load32(const char *from) { /* The packages that decode here exist for little endian only. */
    uint32_t value;
    memcpy(&value, from, 4);
    return value;
}

static i64 zstd_decode(Thread *thread, const char *source, i64 size, char *target, i64 most) {
    if (!thread->contexts[0] && !(thread->contexts[0] = thread->work->libraries->zstd_new_decoder())) return FAILED;
    return (i64)thread->work->libraries->zstd_decode(thread->contexts[0], target, (size_t)most, source, (size_t)size);
}

/* Decoded bytes, by the header: blosc trusts it, so it is compared with the sizes first. Most builds lack snappy (2). */
static i64 blosc_size(const char *source, i64 size) {
    return size < 16 || load32(source + 12) != size || (unsigned char)source[2] >> 5 == 2 ? FAILED : (i64)load32(source + 4);
}

static i64 blosc_decode(Thread *thread, const char *source, i64 size, char *target, i64 most) {
    i64 count = blosc_size(source, size);
    return count <= most && thread->work->libraries->blosc_decode(source, target, (size_t)count, 1) == count ? count : FAILED;
}

/* Decodes one gzip member without extra fields (RFC 1952): a header of 10 bytes, CRC-32 and size at the end. */
static i64 gzip_decode(Thread *thread, const char *source, i64 size, char *target, i64 most) {
    if (size < 18 || size > INT32_MAX || most > INT32_MAX || load32(source) != 0x00088B1F) return FAILED;
    const char *input = source + 10;
    uint32_t left = (uint32_t)size - 18, room = (uint32_t)most, count;
    char *state = thread->state; /* The first fields of ISA-L's `inflate_state`. */
    memset(state, 0, (size_t)INFLATE_STATE);
    memcpy(state, &target, 8), memcpy(state + 8, &room, 4);
    memcpy(state + 16, &input, 8), memcpy(state + 32, &left, 4);
    if (thread->work->libraries->inflate(state) != 0 || load32(state + 32)) return FAILED;
    if ((count = load32(state + 12)) > most || count != load32(source + size - 4)) return FAILED;
    return thread->work->libraries->crc32(0, target, count) == load32(source + size - 8) ? (i64)count : FAILED;
}

static i64 shuffle(const char *source, i64 size, char *target, i64 most, i64 width, int undo) {
    i64 number = size / width;
    if (size > most || size % width) return FAILED;
    for (i64 byte = 0; byte < width; byte++)
        for (i64 at = 0; at < number; at++) {
            i64 together = byte * number + at, apart = at * width + byte;
            target[undo ? apart : together] = source[undo ? together : apart];
        }
    return size;
}

static i64 decode_one(Thread *thread, const Stage *stage, const char *source, i64 size, char *target, i64 most) {
    if (stage->kind == ZSTD) return zstd_decode(thread, source, size, target, most);
    if (stage->kind == BLOSC) return blosc_decode(thread, source, size, target, most);
    if (stage->kind == GZIP) return gzip_decode(thread, source, size, target, most);
    return stage->kind == SHUFFLE ? shuffle(source, size, target, most, stage->first, 1) : FAILED;
}

/* Undoes all codecs of a chunk. Returns its elements as they are stored: at `target`, unless no codec but
 * checksums changed the bytes; 0 if a codec fails or the size is not that of a chunk. */
static const char *decode(Thread *thread, const Chunk *chunk, const char *source, i64 size, char *target) {
    char *spare = thread->spare, *other = spare + chunk->room;
    i64 start = started(thread);
    for (i64 at = 0; at < chunk->number; at++) {
        const Stage *stage = chunk->stages + at;
        if (stage->kind == CRC32C) {
            if ((size -= 4) < 0 || size > stage->most) return 0;
            if (thread->work->libraries->crc32c(source, (size_t)size) != load32(source + size)) return 0;
            continue;
        }
        int last = at + 1 == chunk->number;
        i64 room = last ? chunk->nbytes : chunk->room, most = stage->most < room ? stage->most : room;
        char *into = last ? target : source == spare ? other : spare;
        size = decode_one(thread, stage, source, size, into, most);
        if (size < 0 || size > most) return 0;
        source = into;
    }
    if (size != chunk->nbytes) return 0;
    counted(thread, CHUNKS, size, start);
    return source;
}

static i64 encode_one(Thread *thread, const Stage *stage, const char *source, i64 size, char *target) {
    const Libraries *library = thread->work->libraries;
    size_t most = (size_t)stage->most;
    if (stage->kind == ZSTD) { /* Level and checksum; 100 and 201 are the numbers of these parameters. */
        if (!thread->contexts[1] && !(thread->contexts[1] = library->zstd_new_encoder())) return FAILED;
        if ((i64)library->zstd_set(thread->contexts[1], 100, (int)stage->first) < 0 ||
            (i64)library->zstd_set(thread->contexts[1], 201, (int)stage->second) < 0) return FAILED;
        return (i64)library->zstd_encode(thread->contexts[1], target, most, source, (size_t)size);
    }
    if (stage->kind == BLOSC) { /* Level, shuffle, size of elements, block size and name. */
        i64 found = library->blosc_encode((int)stage->first, (int)stage->second, (size_t)stage->third, (size_t)size, source,
                                          target, most, (const char *)stage->fifth, (size_t)stage->fourth, 1);
        return found > 0 ? found : FAILED;
    }
    if (stage->kind == SHUFFLE) return shuffle(source, size, target, stage->most, stage->first, 0);
    if (stage->kind != CRC32C || size + 4 > stage->most) return FAILED;
    memcpy(target, source, (size_t)size);
    uint32_t sum = library->crc32c(source, (size_t)size);
    memcpy(target + size, &sum, 4);
    return size + 4;
}

/* Encodes the elements of a chunk; puts the address of the result into `source` and returns its size. */
static i64 encode(Thread *thread, const char **source) {
    const Chunk *chunk = thread->work->chunk;
    i64 size = chunk->nbytes, start = started(thread);
    for (i64 at = 0; at < chunk->number; at++) {
        char *into = *source == thread->spare ? thread->spare + chunk->room : thread->spare;
        if (chunk->stages[at].most > chunk->room) return FAILED;
        size = encode_one(thread, chunk->stages + at, *source, size, into);
        if (size <= 0) return FAILED;
        *source = into;
    }
    counted(thread, CHUNKS, chunk->nbytes, start);
    return size;
}

/* Encodes a chunk in memory; returns the size of the result, at `target`. So the caller tries a library. */
i64 xzarr3_encode(const Work *work, const char *source, char *target) {
    Thread thread = {.work = work, .contexts = work->contexts, .spare = work->scratch};
    i64 size = encode(&thread, &source);
    if (size > 0) memcpy(target, source, (size_t)size);
    return size;
}

/* Reads */

static i64 read_at(Thread *thread, int file, char *to, i64 size, i64 at) {
    i64 done = 0, start = started(thread);
    while (done < size) {
        ssize_t count = pread(file, to + done, (size_t)(size - done), (off_t)(at + done));
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) break;
        done += count;
    }
    counted(thread, READS, done, start);
    return done;
}

static int put_name(char *name, const char *prefix, i64 size, i64 separator, const i64 *coords, i64 number) {
    if (size + 21 * number + 1 > MOST_NAME) return 0;
    const char between[2] = {(char)separator};
    memcpy(name, prefix, (size_t)size);
    name[size] = 0;
    for (i64 axis = 0; axis < number; axis++)
        size += sprintf(name + size, "%s%lld", axis ? between : "", (long long)coords[axis]);
    return 1;
}

/* Opens the file of a row; puts its size into `size`. Returns -1, and the status of the row, if it cannot. */
static int open_file(const Read *job, i64 file, i64 *size, int *status) {
    char name[MOST_NAME];
    struct stat info;
    *status = LEFT;
    const i64 *coords = job->coords + file * job->coordinates;
    if (!put_name(name, job->prefix, job->prefix_size, job->separator, coords, job->coordinates)) return -1;
    int opened = open(name, (int)job->flags);
    if (opened < 0 && errno == ENOENT && lstat(name, &info) != 0 && errno == ENOENT) *status = ABSENT;
    if (opened < 0) return -1; /* A link that leads nowhere is an error. */
    if (fstat(opened, &info) != 0 || !S_ISREG(info.st_mode)) return close(opened), -1;
    *size = (i64)info.st_size;
    return opened;
}

/* Fills the boxes of a row that is absent. */
static int fill_row(const Read *job, i64 row) {
    for (i64 box = job->begin[row], ndim = job->work.chunk->ndim; box < job->begin[row + 1]; box++)
        fill_box(job->out + job->place[box], job->strides, job->fill, job->count + box * ndim, job->work.chunk);
    return ABSENT;
}

/* The bytes that a row needs of a chunk whose stored bytes are its elements. One box is one range, or `number`
 * ranges for the indices of the first `split` dimensions, where the gaps between them are larger than another
 * call is worth. Several boxes are the range from the first to the last of them. */
typedef struct {
    i64 first, extent, size, number, split, apart[MOST_DIMENSIONS];
    int direct;    /* Whether it is a whole chunk whose elements lie at their place just as they are stored. */
    i64 low, high; /* The stored bytes, from `low` to `high`, of the blocks of blosc that it needs. */
} Span;

static void span_of(const Read *job, i64 row, Span *span) {
    const Chunk *chunk = job->work.chunk;
    i64 ndim = chunk->ndim, low = INT64_MAX, high = 0, block, boxes = job->begin[row + 1] - job->begin[row];
    for (i64 axis = 0; axis < ndim; axis++) /* A step beyond the end takes one element, and may exceed 64 bits. */
        span->apart[axis] = chunk->strides[axis] * (job->step[axis] < chunk->shape[axis] ? job->step[axis] : 1);
    for (i64 box = job->begin[row]; box < job->begin[row + 1]; box++) {
        i64 first = 0, end = chunk->itemsize;
        for (i64 axis = 0; axis < ndim; axis++) {
            first += job->start[box * ndim + axis] * chunk->strides[axis];
            end += (job->count[box * ndim + axis] - 1) * span->apart[axis];
        }
        low = first < low ? first : low;
        high = first + end > high ? first + end : high;
    }
    span->first = low, span->extent = span->size = high - low, span->number = 1, span->split = 0;
    const i64 *count = job->count + job->begin[row] * ndim;
    i64 outer = outer_dimensions(ndim, count, job->strides, span->apart, chunk->itemsize, &block);
    span->direct = boxes == 1 && outer == 0 && block == chunk->nbytes && !chunk->swap && !chunk->truth;
    for (i64 axis = 0; boxes == 1 && axis < ndim; axis++, span->split = axis) {
        i64 each = span->size - (count[axis] - 1) * span->apart[axis];
        if (count[axis] > 1 && count[axis] * (each + job->gap) >= span->size) break;
        span->size = each;
        span->number *= count[axis];
    }
}

/* Places the boxes of a row from the elements of its chunk. */
static void place_row(const Read *job, i64 row, const Span *span, const char *elements) {
    const Chunk *chunk = job->work.chunk; i64 ndim = chunk->ndim;
    for (i64 box = job->begin[row]; box < job->begin[row + 1]; box++) {
        const char *from = elements;
        for (i64 axis = 0; axis < ndim; axis++) from += job->start[box * ndim + axis] * chunk->strides[axis];
        copy_box(job->out + job->place[box], job->strides, from, span->apart, job->count + box * ndim, ndim, chunk->itemsize);
    }
}

/* Whether a row needs so few blocks of a chunk of blosc that they are decoded alone; its first bytes tell. */
static int has_few_blocks(const Thread *thread, const char *source, i64 size, Span *span) {
    const Chunk *chunk = thread->work->chunk;
    if (!thread->work->libraries->blosc_part || chunk->number != 1 || chunk->stages[0].kind != BLOSC) return 0;
    if (blosc_size(source, size) != chunk->nbytes || source[2] & 2 || !source[3]) return 0; /* 2: they are not encoded. */
    i64 block = load32(source + 8), number = block ? (chunk->nbytes - 1) / block + 1 : 0, index = 16 + 4 * number;
    i64 from = block ? span->first / block : 0, to = block ? (span->first + span->extent - 1) / block + 1 : 0;
    if (to - from >= number || index > size || index > FIRST || block % (unsigned char)source[3]) return 0;
    span->low = span->high = load32(source + 16 + 4 * from);
    for (i64 at = from + 1; at <= to; at++) {
        i64 end = at < number ? load32(source + 16 + 4 * at) : size;
        if (end <= span->high) return 0; /* Blocks in another order, which are rare. */
        span->high = end;
    }
    return span->low >= index && span->high <= size;
}

/* Decodes and places a row from its stored bytes, at `source`. */
static int place_bytes(Thread *thread, i64 row, const char *source, i64 size) {
    const Read *job = thread->job; const Chunk *chunk = job->work.chunk;
    Span span;
    span_of(job, row, &span);
    i64 start = started(thread);
    char *target = span.direct ? job->out + job->place[job->begin[row]] : thread->elements;
    const char *elements = target;
    if (has_few_blocks(thread, source, size, &span)) { /* It is a part, at its place in the chunk. */
        i64 width = (unsigned char)source[3], first = span.first / width;
        i64 number = (span.first + span.extent - 1) / width + 1 - first;
        char *to = target + first * width;
        if ((first + number) * width > chunk->nbytes) return LEFT;
        if (job->work.libraries->blosc_part(source, (int)first, (int)number, to) != number * width) return LEFT;
        counted(thread, CHUNKS, chunk->nbytes, start);
    } else if (!(elements = decode(thread, chunk, source, size, target))) return LEFT;
    if (span.direct && elements == target) return DONE;
    if (chunk->swap || chunk->truth) { /* The bytes may be the caller's. */
        if (elements != thread->elements) memcpy(thread->elements, elements, (size_t)chunk->nbytes);
        elements = thread->elements;
        settle(chunk, thread->elements + span.first, span.extent);
    }
    place_row(job, row, &span, elements);
    return DONE;
}

/* Reads ranges of a chunk whose stored bytes are its elements. */
static int read_ranges(Thread *thread, int file, i64 base, i64 row, const Span *span) {
    const Read *job = thread->job; const Chunk *chunk = job->work.chunk;
    i64 box = job->begin[row], ndim = chunk->ndim, at[MOST_DIMENSIONS] = {0}, block;
    const i64 *inside = job->count + box * ndim + span->split, *apart = span->apart + span->split;
    const i64 *strides = job->strides + span->split;
    i64 rest = ndim - span->split, outer = outer_dimensions(rest, inside, strides, apart, chunk->itemsize, &block);
    int straight = outer == 0 && block == span->size && !chunk->swap && !chunk->truth;
    for (;;) {
        i64 from = base + span->first, axis = span->split;
        char *to = job->out + job->place[box];
        for (i64 each = 0; each < span->split; each++) {
            from += at[each] * span->apart[each];
            to += at[each] * job->strides[each];
        }
        char *memory = straight ? to : thread->elements;
        if (read_at(thread, file, memory, span->size, from) != span->size) return LEFT;
        if (!straight) {
            settle(chunk, memory, span->size);
            copy_box(to, strides, memory, apart, inside, rest, chunk->itemsize);
        }
        while (axis > 0 && ++at[axis - 1] == job->count[box * ndim + axis - 1]) at[--axis] = 0;
        if (axis == 0) return DONE;
    }
}

/* Reads a row from a file that holds its elements from byte `base` on. */
static int read_plain(Thread *thread, int file, i64 base, i64 row) {
    const Read *job = thread->job; const Chunk *chunk = job->work.chunk;
    i64 start = started(thread), before = thread->counts[READ_TIME], box = job->begin[row];
    int single = box + 1 == job->begin[row + 1], status = DONE;
    Span span;
    span_of(job, row, &span);
    if (span.direct || (single && (span.size + job->gap) * span.number < chunk->nbytes))
        status = read_ranges(thread, file, base, row, &span);
    else { /* Several boxes, or the whole chunk, which takes no longer than its parts. */
        if (span.size + job->gap >= chunk->nbytes) span.first = 0, span.size = chunk->nbytes;
        char *memory = thread->elements;
        if (read_at(thread, file, memory + span.first, span.size, base + span.first) != span.size) return LEFT;
        settle(chunk, memory + span.first, span.size);
        place_row(job, row, &span, memory);
    }
    if (status == DONE) counted(thread, CHUNKS, chunk->nbytes, start);
    thread->counts[TIME] -= thread->counts[READ_TIME] - before;
    return status;
}

/* Reads a chunk that is a file, or only the blocks of blosc that a row needs: its header then tells that it ends with
 * them, so that nothing else is decoded. Returns its size; 0 if not all bytes could be read. */
static i64 read_stored(Thread *thread, i64 row, int file, i64 size) {
    char *source = thread->source;
    i64 done = 0;
    Span span;
    if (size > 4 * FIRST && thread->work->chunk->stages[0].kind == BLOSC) {
        span_of(thread->job, row, &span);
        if (read_at(thread, file, source, done = FIRST, 0) != FIRST) return 0;
        if (has_few_blocks(thread, source, size, &span)) {
            uint32_t end = (uint32_t)span.high;
            memcpy(source + 12, &end, 4);
            done = span.low, size = span.high;
        }
    }
    return read_at(thread, file, source + done, size - done, done) == size - done ? size : 0;
}

/* Reads a row that is a whole file. If files stay open for the rows of a later call, it is a part: the index of a shard. */
static int read_file(Thread *thread, i64 row) {
    const Read *job = thread->job; const Chunk *chunk = job->work.chunk;
    i64 size = 0;
    int status, file = open_file(job, row, &size, &status);
    if (file < 0) return status;
    if (job->files) {
        job->files[row] = file; /* The caller closes it. */
        i64 length = job->length[row], at = job->offset[row] + (job->offset[row] < 0 ? size : 0);
        int whole = length <= chunk->largest && at >= 0 && at <= size - length &&
                    read_at(thread, file, thread->source, length, at) == length;
        return whole ? place_bytes(thread, row, thread->source, length) : LEFT;
    }
    if (!chunk->number)
        status = size == chunk->nbytes ? read_plain(thread, file, 0, row) : LEFT;
    else if (size <= chunk->largest && (size = read_stored(thread, row, file, size)) > 0)
        status = place_bytes(thread, row, thread->source, size);
    close(file);
    return status;
}

/* Reads the part of a file that is a row, and with it the next rows of its fetch. Returns how many. */
static int read_parts(Thread *thread, i64 row, i64 end) {
    const Read *job = thread->job; const Chunk *chunk = job->work.chunk;
    uint8_t *status = job->work.status;
    i64 size = job->length[row], at = job->offset[row];
    int file = (int)job->files[job->file[row]];
    if (size < 0 || size > chunk->largest || file < 0 || at < 0 || at > INT64_MAX / 2) {
        status[row] = size == -1 ? ABSENT : LEFT;
        return 1;
    }
    if (!chunk->number) {
        struct stat info;
        int inside = size == chunk->nbytes && fstat(file, &info) == 0 && at <= info.st_size - size;
        status[row] = inside ? (uint8_t)read_plain(thread, file, at, row) : LEFT;
        return 1;
    }
    i64 last = row + 1, stop = at + size;
    for (; last < end && job->file[last] == job->file[row]; last++) {
        i64 next = job->offset[last], length = job->length[last];
        if (length == -1) continue; /* It is absent. */
        if (length < 0 || length > chunk->largest || next < stop || next - at >= AHEAD) break;
        stop = next + length;
    }
    i64 found = read_at(thread, file, thread->source, stop - at, at);
    for (i64 each = row; each < last; each++) {
        i64 offset = job->offset[each] - at, length = job->length[each];
        status[each] = length == -1               ? (uint8_t)fill_row(job, each)
                       : offset + length <= found ? (uint8_t)place_bytes(thread, each, thread->source + offset, length)
                                                  : LEFT;
    }
    return (int)(last - row);
}

static int read_memory(Thread *thread, i64 row) {
    const Read *job = thread->job;
    const i64 *memory = job->memory + 2 * (job->file ? job->file[row] : row);
    i64 at = job->offset ? job->offset[row] : 0, size = job->length ? job->length[row] : memory[1];
    if (size == -1) return ABSENT;
    if (size < 0 || at < 0 || at > memory[1] || size > memory[1] - at) return LEFT;
    return place_bytes(thread, row, (const char *)memory[0] + at, size);
}

static int read_row(void *state, i64 row, i64 end) {
    Thread *thread = state;
    const Read *job = thread->job;
    uint8_t *status = job->work.status + row;
    int done = 1;
    if (job->files && job->file) done = read_parts(thread, row, end);
    else *status = (uint8_t)(job->memory ? read_memory(thread, row) : read_file(thread, row));
    if (*status == ABSENT && (job->file || !job->files)) fill_row(job, row);
    return done;
}

/* Writes */

static int write_all(int file, const char *from, i64 size) {
    while (size > 0) {
        ssize_t count = write(file, from, (size_t)size);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return 0;
        from += count;
        size -= count;
    }
    return 1;
}

static void leave_folders(Thread *thread, int depth) {
    while (thread->depth > depth) close(thread->opened[--thread->depth]);
}

/* The open directory of a row, made if needed: no link in its path is followed. -1 if that is not possible. */
static int folder_of(Thread *thread, const i64 *coords, char *name) {
    const Write *job = thread->job;
    const int flags = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    int last = job->separator == '/' && job->coordinates ? (int)job->coordinates - 1 : 0, same = 0;
    while (same < thread->depth && same < last && thread->within[same] == coords[same]) same++;
    leave_folders(thread, same);
    while (thread->depth < last) {
        int above = thread->depth ? thread->opened[thread->depth - 1] : (int)job->folder;
        const char *prefix = thread->depth ? "" : job->prefix;
        i64 size = thread->depth ? 0 : job->prefix_size;
        if (!put_name(name, prefix, size, '/', coords + thread->depth, 1)) return -1;
        int found = openat(above, name, flags);
        if (found < 0 && errno == ENOENT && (mkdirat(above, name, 0777) == 0 || errno == EEXIST))
            found = openat(above, name, flags);
        if (found < 0) return -1;
        thread->within[thread->depth] = coords[thread->depth];
        thread->opened[thread->depth++] = found;
    }
    i64 size = last ? 0 : job->prefix_size;
    if (!put_name(name, job->prefix, size, job->separator, coords + last, job->coordinates - last)) return -1;
    return last ? thread->opened[last - 1] : (int)job->folder;
}

typedef struct {
    int folder, file;
    char name[MOST_NAME], lock[MOST_NAME + sizeof LOCK];
} Target;

/* Creates and locks the file that becomes the value, as xzarr3/stores/local/files.py does; removes it if nothing locks. */
static int create(Thread *thread, const i64 *coords, Target *target) {
    const Write *job = thread->job;
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    struct stat info, named;
    if ((target->folder = folder_of(thread, coords, target->name)) < 0) return 0;
    strcat(strcpy(target->lock, target->name), LOCK);
    if ((target->file = openat(target->folder, target->lock, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) < 0) return 0;
    int error = fcntl(target->file, F_OFD_SETLK, &whole) == 0 ? 0 : errno;
    int mine = !error && fstat(target->file, &info) == 0 && info.st_nlink && !info.st_size;
    if (mine && job->late) /* A network mount may still count the link of a file that another writer has removed. */
        mine = fstatat(target->folder, target->lock, &named, AT_SYMLINK_NOFOLLOW) == 0 && named.st_ino == info.st_ino;
    if (mine) return 1;
    if (error == EINVAL || error == ENOLCK || error == ENOSYS || error == ENOTSUP) unlinkat(target->folder, target->lock, 0);
    close(target->file);
    return 0;
}

static int finish(const Write *job, Target *target, int complete) {
    complete = complete && (!job->late || close(dup(target->file)) == 0) &&
               renameat(target->folder, target->lock, target->folder, target->name) == 0;
    if (!complete) unlinkat(target->folder, target->lock, 0);
    close(target->file); /* Only now others get the lock. */
    return complete ? DONE : LEFT;
}

/* What becomes of a unit that holds only the fill value: if it is stored, Python erases it. */
static int write_nothing(const Write *job, const i64 *coords) {
    char name[MOST_NAME];
    struct stat info;
    if (!put_name(name, job->prefix, job->prefix_size, job->separator, coords, job->coordinates)) return LEFT;
    return fstatat((int)job->folder, name, &info, AT_SYMLINK_NOFOLLOW) != 0 && errno == ENOENT ? ABSENT : LEFT;
}

/* Whether elements of the caller are all the fill value. */
static int is_empty(const Write *job, const char *source, const i64 *count) {
    const Chunk *chunk = job->work.chunk;
    i64 block, ndim = outer_dimensions(chunk->ndim, count, job->strides, job->strides, chunk->itemsize, &block);
    return is_box_of(source, job->strides, count, ndim, block, job->fill, chunk->itemsize);
}

/* Encodes a chunk of which `count` elements are in the array, from `source` on. Puts the address of the result
 * into `found` and returns its size, NONE if the chunk is not stored, or FAILED. */
static i64 encoded(Thread *thread, const char *source, const i64 *count, int outside, const char **found) {
    const Write *job = thread->job; const Chunk *chunk = job->work.chunk;
    i64 ndim = chunk->ndim;
    if (!job->keep_empty && (outside || is_empty(job, source, count))) return NONE;
    int part = outside, packed = !chunk->swap;
    for (i64 axis = 0; axis < ndim; axis++) {
        part |= count[axis] != chunk->shape[axis];
        packed &= count[axis] == 1 || job->strides[axis] == chunk->strides[axis];
    }
    *found = source;
    if (part || !packed) {
        if (part) fill_box(thread->elements, chunk->strides, job->fill, chunk->shape, chunk);
        if (!outside) copy_box(thread->elements, chunk->strides, source, job->strides, count, ndim, chunk->itemsize);
        if (chunk->swap) reverse_bytes(thread->elements, chunk->nbytes, chunk->swap);
        *found = thread->elements;
    }
    return encode(thread, found);
}

/* Reads a chunk and puts a part of it in; the caller has its lock. Returns what `encoded` does. */
static i64 merged(Thread *thread, i64 row, const Target *target, const char **found) {
    const Write *job = thread->job; const Chunk *chunk = job->stored;
    const i64 *start = job->start + row * chunk->ndim, *count = job->count + row * chunk->ndim;
    char *elements = thread->elements, *to = elements;
    struct stat info;
    int file = openat(target->folder, target->name, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    if (file < 0 && errno != ENOENT) return FAILED;
    if (file < 0) fill_box(elements, chunk->strides, job->fill, chunk->shape, chunk);
    else {
        int whole = fstat(file, &info) == 0 && S_ISREG(info.st_mode) && info.st_size <= chunk->largest &&
                    read_at(thread, file, thread->source, info.st_size, 0) == info.st_size;
        close(file);
        const char *old = whole ? decode(thread, chunk, thread->source, info.st_size, elements) : 0;
        if (!old) return FAILED;
        if (old != elements) memcpy(elements, old, (size_t)chunk->nbytes);
        settle(chunk, elements, chunk->nbytes);
    }
    for (i64 axis = 0; axis < chunk->ndim; axis++) to += start[axis] * chunk->strides[axis];
    copy_box(to, chunk->strides, job->source + job->place[row], job->strides, count, chunk->ndim, chunk->itemsize);
    if (!job->keep_empty && is_box_of(elements, 0, 0, 0, chunk->nbytes, job->fill, chunk->itemsize)) return NONE;
    if (chunk->swap) reverse_bytes(elements, chunk->nbytes, chunk->swap);
    *found = elements;
    return encode(thread, found);
}

static int write_chunk(Thread *thread, i64 row) {
    const Write *job = thread->job;
    i64 ndim = job->work.chunk->ndim, size = 0;
    const i64 *coords = job->coords + row * job->coordinates, *count = job->count + row * ndim;
    const char *source = job->source + job->place[row], *found;
    int part = ndim && job->start[row * ndim] >= 0;
    Target target;
    if (part && !job->keep_empty && is_empty(job, source, count) && write_nothing(job, coords) == ABSENT) return ABSENT;
    if (!part && (size = encoded(thread, source, count, 0, &found)) == NONE) return write_nothing(job, coords);
    if (size < 0 || !create(thread, coords, &target)) return LEFT;
    if (part) size = merged(thread, row, &target, &found);
    i64 start = started(thread);
    int status = finish(job, &target, size > 0 && write_all(target.file, found, size));
    if (status == DONE) counted(thread, READS, size, start);
    return status;
}

/* Writes the inner chunks of a shard and its index, through AHEAD bytes of memory. */
static int write_inner(Thread *thread, i64 row, int file, i64 *entries, i64 *total) {
    const Write *job = thread->job; const Chunk *chunk = job->work.chunk;
    i64 ndim = chunk->ndim, every = 1, filled = 0, count[MOST_DIMENSIONS];
    char *ahead = thread->source;
    for (i64 axis = 0; axis < ndim; axis++) every *= job->inner[axis];
    i64 offset = job->index_at_start ? job->index_size : 0;
    if (lseek(file, (off_t)offset, SEEK_SET) < 0) return 0;
    for (i64 number = 0; number < every; number++) {
        i64 rest = number;
        int outside = 0;
        const char *source = job->source + job->place[row], *found;
        for (i64 axis = ndim; axis-- > 0; rest /= job->inner[axis]) {
            i64 low = rest % job->inner[axis] * chunk->shape[axis], left = job->count[row * ndim + axis] - low;
            outside |= left <= 0;
            count[axis] = left < chunk->shape[axis] ? left : chunk->shape[axis];
            source += left > 0 ? low * job->strides[axis] : 0;
        }
        i64 size = encoded(thread, source, count, outside, &found);
        if (size == FAILED) return 0;
        entries[2 * number] = size == NONE ? -1 : offset;
        entries[2 * number + 1] = size == NONE ? -1 : size;
        if (size == NONE) continue;
        offset += size;
        if (filled + size > AHEAD) {
            if (!write_all(file, ahead, filled)) return 0;
            filled = 0;
        }
        if (size > AHEAD && !write_all(file, found, size)) return 0;
        if (size > AHEAD) continue;
        memcpy(ahead + filled, found, (size_t)size);
        filled += size;
    }
    if (job->index_checked) {
        uint32_t sum = job->work.libraries->crc32c(entries, (size_t)job->index_size - 4);
        memcpy((char *)entries + job->index_size - 4, &sum, 4);
    }
    *total = offset + (job->index_at_start ? 0 : job->index_size);
    if (!write_all(file, ahead, filled)) return 0;
    if (job->index_at_start && lseek(file, 0, SEEK_SET) < 0) return 0;
    return write_all(file, (const char *)entries, job->index_size);
}

static int write_shard(Thread *thread, i64 row) {
    const Write *job = thread->job; const Chunk *chunk = job->work.chunk;
    const i64 *coords = job->coords + row * job->coordinates, *count = job->count + row * chunk->ndim;
    const char *source = job->source + job->place[row];
    Target target;
    i64 total = 0;
    if (!job->keep_empty && is_empty(job, source, count)) return write_nothing(job, coords);
    if (!create(thread, coords, &target)) return LEFT;
    i64 start = started(thread), before = thread->counts[TIME];
    int status = finish(job, &target, write_inner(thread, row, target.file, (i64 *)thread->state, &total));
    counted(thread, READS, total, start);
    thread->counts[READ_TIME] -= thread->counts[TIME] - before;
    return status;
}

static int write_row(void *state, i64 row, i64 end) {
    Thread *thread = state;
    const Write *job = thread->job;
    if (row < end && job->work.status[row] == LEFT) /* Python marks rows that are its own as done. */
        job->work.status[row] = (uint8_t)(job->inner ? write_shard(thread, row) : write_chunk(thread, row));
    return 1;
}

/* Threads */

static void *run(void *state) {
    Thread *thread = state;
    const Work *work = thread->work;
    i64 end = nanoseconds() + work->until * 1000000;
    do {
        i64 fetch = __atomic_fetch_add(work->next, work->run, __ATOMIC_RELAXED);
        i64 last = fetch + work->run < work->fetches ? fetch + work->run : work->fetches;
        for (; fetch < last; fetch++) {
            i64 row = work->edges ? work->edges[fetch] : fetch, end = work->edges ? work->edges[fetch + 1] : fetch + 1;
            while (row < end) row += thread->row(thread, row, end);
        }
        if (last >= work->fetches) break;
    } while (nanoseconds() < end);
    leave_folders(thread, 0);
    for (int at = 0; at < COUNTS; at++) __atomic_fetch_add(work->counts + at, thread->counts[at], __ATOMIC_RELAXED);
    return 0;
}

/* Bytes of scratch memory of one thread; `extra` bytes are for the entries of a shard that is written. */
i64 xzarr3_scratch(const Chunk *chunk, i64 extra) {
    i64 stored = chunk->largest + AHEAD, state = extra > INFLATE_STATE ? extra : INFLATE_STATE;
    return ((stored + chunk->nbytes + 2 * chunk->room + state + 63) / 64 + 4) * 64;
}

static void work_on(const Work *work, const void *job, int (*row)(void *, i64, i64)) {
    const Chunk *chunk = work->chunk;
    Thread threads[MOST_THREADS];
    pthread_t others[MOST_THREADS];
    sigset_t every, before;
    i64 number = work->threads < MOST_THREADS ? work->threads : MOST_THREADS, begun = 1, stored = chunk->largest + AHEAD;
    for (i64 at = 0; at < number; at++) {
        Thread *thread = threads + at;
        char *memory = work->scratch + at * work->scratch_size;
        *thread = (Thread){.work = work, .job = job, .row = row, .contexts = work->contexts + 2 * at, .state = memory};
        thread->source = memory + (work->scratch_size - stored - chunk->nbytes - 2 * chunk->room) / 64 * 64;
        thread->elements = thread->source + stored;
        thread->spare = thread->elements + chunk->nbytes;
    }
    sigfillset(&every); /* Signals are for the threads of Python. */
    pthread_sigmask(SIG_BLOCK, &every, &before);
    while (begun < number && pthread_create(others + begun, 0, run, threads + begun) == 0) begun++;
    pthread_sigmask(SIG_SETMASK, &before, 0);
    run(threads);
    while (begun > 1) pthread_join(others[--begun], 0);
}

void xzarr3_read(const Read *job) { work_on(&job->work, job, read_row); }
void xzarr3_write(const Write *job) { work_on(&job->work, job, write_row); }

void xzarr3_close(i64 *files, i64 number) {
    for (i64 at = 0; at < number; at++)
        if (files[at] >= 0) close((int)files[at]);
}

void xzarr3_free(const Libraries *libraries, void **contexts, i64 threads) {
    for (i64 at = 0; at < 2 * threads; at++)
        if (contexts[at]) (at % 2 ? libraries->zstd_free_encoder : libraries->zstd_free_decoder)(contexts[at]);
}

i64 xzarr3_contract(void) { return CONTRACT; }
