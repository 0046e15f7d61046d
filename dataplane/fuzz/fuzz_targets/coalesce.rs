//! `cargo +nightly fuzz run coalesce`, from `dataplane/`.

#![no_main]

#[path = "../src/coalesce.rs"]
mod coalesce;

libfuzzer_sys::fuzz_target!(|data: &[u8]| drop(coalesce::fuzz(data)));
