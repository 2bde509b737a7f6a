"""From a selection to bytes and back: projection on the grid, plan, executor."""
