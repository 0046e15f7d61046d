//! Traces in mahimahi's form: when a link could send.
//!
//! One number a line: a millisecond in which 1500 bytes may leave; repeated for more. The end of the last line is the
//! end of the trace, which then begins anew. Source: `traces/README` and `mm-link(1)` of ravinet/mahimahi.

use std::path::Path;

use crate::text;

/// Opportunities to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    name: String,
    /// In ns from the start; not decreasing.
    times_ns: Box<[u64]>,
}

/// Bytes that an opportunity carries.
pub(super) const OPPORTUNITY: u64 = 1500;

impl Trace {
    /// The largest file, in bytes: an hour at 16 Gbit/s.
    const MAX: u64 = 64 << 20;

    /// Reads a file.
    ///
    /// # Errors
    /// What is wrong with it, in a sentence.
    pub fn read(path: &str) -> Result<Self, String> {
        let text = read_text(path, Self::MAX, "trace")?;
        Self::parse(path, &text)
    }

    /// Reads a text; `name` is for messages.
    ///
    /// # Errors
    /// What is wrong with it, in a sentence.
    pub fn parse(name: &str, lines: &str) -> Result<Self, String> {
        let mut times_ns = Vec::new();
        for (at, line) in lines.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() {
                continue;
            }
            let shown = text::beginning(line);
            let time_ns = line
                .parse::<u64>()
                .ok()
                .and_then(|ms| ms.checked_mul(1_000_000))
                .ok_or_else(|| {
                    format!(
                        "trace {name}, line {}: {shown:?} is no number of milliseconds",
                        at + 1
                    )
                })?;
            if times_ns.last().is_some_and(|last| *last > time_ns) {
                return Err(format!(
                    "trace {name}, line {}: {shown} is earlier than the line before",
                    at + 1
                ));
            }
            times_ns.push(time_ns);
        }
        if times_ns.last().is_none_or(|last| *last == 0) {
            return Err(format!(
                "trace {name}: it must last longer than 0 ms (the last line says how long)"
            ));
        }
        Ok(Self {
            name: name.to_owned(),
            times_ns: times_ns.into(),
        })
    }

    /// The file it came from.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The mean rate in bits per second.
    pub fn mean_bps(&self) -> u64 {
        let bits = self.times_ns.len() as u128 * u128::from(OPPORTUNITY) * 8 * 1_000_000_000;
        (bits / u128::from(self.length_ns())) as u64
    }

    fn length_ns(&self) -> u64 {
        self.times_ns.last().copied().unwrap_or(1)
    }

    /// The number of the first opportunity at `ns` or later.
    pub(super) fn first_at(&self, ns: u64) -> u64 {
        let (length, count) = (self.length_ns(), self.times_ns.len() as u64);
        // An opportunity at the very end of a round comes with the beginning of the next.
        let round = ns / length;
        let round = if ns.is_multiple_of(length) && round > 0 {
            round - 1
        } else {
            round
        };
        let within = ns - round * length;
        round * count + self.times_ns.partition_point(|time| *time < within) as u64
    }

    /// When an opportunity is. `None`: the trace was over before.
    pub(super) fn time_ns(&self, number: u64, once: bool) -> Option<u64> {
        let count = self.times_ns.len() as u64;
        if once && number >= count {
            return None;
        }
        let round = (number / count).saturating_mul(self.length_ns());
        Some(round.saturating_add(self.times_ns[(number % count) as usize]))
    }
}

/// Reads a file that somebody named: not a pipe, a device or something endless.
pub(super) fn read_text(path: &str, max: u64, what: &str) -> Result<String, String> {
    text::read(Path::new(path), max).map_err(|error| format!("{what} {path}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(trace: &Trace, from_ns: u64, count: u64, once: bool) -> Vec<Option<u64>> {
        let first = trace.first_at(from_ns);
        (0..count)
            .map(|n| Some(trace.time_ns(first + n, once)? / 1_000_000))
            .collect()
    }

    #[test]
    fn a_trace_begins_anew() {
        let trace = Trace::parse("t", "1\n1\n3\n\n5\n").unwrap();
        let ms = |list: &[u64]| list.iter().copied().map(Some).collect::<Vec<_>>();
        assert_eq!(
            times(&trace, 0, 9, false),
            ms(&[1, 1, 3, 5, 6, 6, 8, 10, 11])
        );
        assert_eq!(times(&trace, 5_000_000, 2, false), ms(&[5, 6]));
        assert_eq!(times(&trace, 5_000_001, 1, false), ms(&[6]));
        assert_eq!(times(&trace, 1_000_000_000_000, 1, false), ms(&[1_000_000]));
        assert_eq!(times(&trace, 4_000_000, 2, true), [Some(5), None]);
        assert_eq!(times(&trace, 5_000_001, 1, true), [None]);
        assert_eq!(Trace::parse("t", "1").unwrap().mean_bps(), 12_000_000);
    }

    #[test]
    fn what_is_no_trace_is_named() {
        for (text, part) in [
            ("", "longer than 0"),
            ("0\n0\n", "longer than 0"),
            ("1\nx\n", "line 2"),
            ("5\n4\n", "earlier"),
            ("-1\n", "line 1"),
            ("18446744073709551615\n", "line 1"),
        ] {
            let error = Trace::parse("t", text).unwrap_err();
            assert!(error.contains(part), "{text:?}: {error}");
        }
        for (path, part) in [
            ("/nonexistent/trace", "No such file"),
            ("/dev/zero", "not an ordinary file"),
            ("/tmp", "not an ordinary file"),
        ] {
            let error = Trace::read(path).unwrap_err();
            assert!(error.contains(part) && error.contains(path), "{error}");
        }
    }
}
