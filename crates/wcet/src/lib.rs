//! Bounds of execution time: segments, bounded loops, longest paths.
