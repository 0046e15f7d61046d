//! Checked views over the bytes of a frame.
