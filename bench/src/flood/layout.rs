//! The structures that bpf/flood.bpf.c shares with us, as bytes.

use super::frame::HEAD_LEN;

/// 1/256 ns, the unit of the program's pacing.
const FRACTION_BITS: u32 = 8;

/// `struct config`.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// Frames per second; 0: as many as possible.
    pub(crate) rate_pps: u64,
    /// How much lateness is made up for.
    pub(crate) debt_ns: u64,
    /// Time of `CLOCK_MONOTONIC` from which on no frame is made.
    pub(crate) deadline_ns: u64,
    /// Where frames leave.
    pub(crate) ifindex: u32,
    /// How many flows.
    pub(crate) flows: u32,
    /// See [`super::frame::Template::sum`].
    pub(crate) sum: u16,
    /// Source port of the first flow.
    pub(crate) first_port: u16,
    /// Whether the template is IPv6.
    pub(crate) ipv6: bool,
    /// First bytes of the template.
    pub(crate) head: [u8; HEAD_LEN],
}

impl Config {
    /// The map's value.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let second: u64 = 1_000_000_000 << FRACTION_BITS;
        let gap = second.checked_div(self.rate_pps).unwrap_or(0);
        let mut bytes = Vec::with_capacity(120);
        bytes.extend(gap.to_ne_bytes());
        bytes.extend((self.debt_ns << FRACTION_BITS).to_ne_bytes());
        bytes.extend(self.deadline_ns.to_ne_bytes());
        bytes.extend(self.ifindex.to_ne_bytes());
        bytes.extend(self.flows.to_ne_bytes());
        bytes.extend(u32::from(self.sum).to_ne_bytes());
        bytes.extend(self.first_port.to_ne_bytes());
        bytes.extend(u16::from(self.ipv6).to_ne_bytes());
        bytes.extend(self.head);
        bytes
    }
}

/// `struct state`, as far as it is reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    /// Frames handed to the interface.
    pub(crate) made: u64,
    /// When the first was made.
    pub(crate) first_ns: u64,
    /// When one was last made, at most 64 frames before the last.
    pub(crate) last_ns: u64,
    /// Lateness that was not made up for.
    pub(crate) given_up_ns: u64,
}

impl State {
    /// Reads the map's value; nothing if it is too short.
    pub(crate) fn decode(bytes: &[u8]) -> Option<State> {
        let word = |n: usize| {
            bytes
                .get(n * 8..n * 8 + 8)
                .and_then(|word| word.try_into().ok())
                .map(u64::from_ne_bytes)
        };
        Some(State {
            made: word(1)?,
            first_ns: word(2)?,
            last_ns: word(3)?,
            given_up_ns: word(4)? >> FRACTION_BITS,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_config_is_laid_out_as_in_c() {
        let config = Config {
            rate_pps: 3_000_000,
            debt_ns: 1,
            deadline_ns: 2,
            ifindex: 3,
            flows: 4,
            sum: 5,
            first_port: 6,
            ipv6: true,
            head: [7; HEAD_LEN],
        };
        let bytes = config.encode();
        assert_eq!(bytes.len(), 120);
        assert_eq!(bytes[..8], 85_333u64.to_ne_bytes());
        assert_eq!(bytes[8..16], 256u64.to_ne_bytes());
        assert_eq!(bytes[32..36], 5u32.to_ne_bytes());
        assert_eq!(bytes[38..41], [1, 0, 7]);
        let unpaced = Config {
            rate_pps: 0,
            ..config
        };
        assert_eq!(unpaced.encode()[..8], [0; 8]);
    }

    #[test]
    fn the_state_is_read_as_laid_out() {
        let words: Vec<u8> = [9u64, 1, 2, 3, 4 << 8, 0]
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .collect();
        let state = State {
            made: 1,
            first_ns: 2,
            last_ns: 3,
            given_up_ns: 4,
        };
        assert_eq!(State::decode(&words), Some(state));
        assert_eq!(State::decode(&words[..32]), None);
    }
}
