//! Tests of coalescing.
