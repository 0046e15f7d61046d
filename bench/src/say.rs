//! Output to people. A closed pipe must not end a run before it has cleaned up, so errors are ignored.

use std::io::Write;

/// A line of progress, on standard error.
pub(crate) fn err(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Results, on standard output.
pub(crate) fn out(text: &str) {
    let mut stdout = std::io::stdout();
    let _ = writeln!(stdout, "{}", text.trim_end());
    let _ = stdout.flush();
}
