//! Discarding frames by what they are.

use super::Stage;
use crate::{burst::Burst, lane::Turn, stats::Reason};

/// Lets no multicast or broadcast frame pass.
///
/// For hairpins: a host that sees its own multicast come back takes it for another's. IPv6 duplicate address detection
/// then finds every address taken.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnicastOnly;

impl Stage for UnicastOnly {
    fn process(&mut self, burst: &mut Burst, turn: &mut Turn) {
        burst.filter(turn, Reason::Filtered, |pool, frame| {
            pool.bytes(frame).first().is_some_and(|byte| byte & 1 == 0)
        });
    }
}
