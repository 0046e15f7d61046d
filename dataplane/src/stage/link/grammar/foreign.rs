//! Words of tc that mean nothing here, with what to write instead.

/// What follows a rate in netem.
pub(super) const OVERHEAD: &str =
    "write 'overhead N cell N'; a cell is given with its header, so tc's 48 5 (ATM) is 'cell 53'";

/// What to write instead of a word of tc.
pub(super) fn remedy(word: &str) -> Option<&'static str> {
    Some(match word {
        "netem" | "tbf" | "tc" | "qdisc" | "add" | "root" => {
            "leave tc's words out and begin with what the link does, e.g. 'delay 50ms'"
        }
        "gap" => "it belongs to reorder: write 'delay 10ms reorder 100% gap 5'",
        "ecn" => {
            "name before it what marks: 'codel ecn', 'pie ecn', 'red min 5p max 15p ecn' or 'loss 5% ecn'"
        }
        "burst" | "buffer" | "maxburst" | "mtu" | "minburst" | "peakrate" => {
            "leave it out: a rate sends one frame after another, without tbf's bucket"
        }
        "latency" => "how long frames may wait is a limit: write 'limit 50ms'",
        "distribution" => "it belongs to jitter: write 'delay 100ms 10ms distribution normal'",
        _ => return None,
    })
}
