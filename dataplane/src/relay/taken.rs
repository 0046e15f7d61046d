//! Pairs that are taken out of a relay while it changes, with all that they have counted.
//!
//! They let go of their ports, which others may want. If the change is refused they are put back; else they are dropped.

use super::{Inner, LaneInfo, Pair, Port, close, observe::Looking};
use crate::{config::PortName, lane::Lane, worker::LaneId};

/// A pair that is out, and its place among the others.
pub(super) struct Taken {
    at: usize,
    pair: Pair,
    ports: Vec<(usize, Port)>,
    lanes: Vec<(LaneId, LaneInfo)>,
    /// Those that a worker had.
    turned: Vec<(LaneId, Box<Lane>)>,
    looking: Vec<Looking>,
}

impl Inner {
    /// Takes a pair out. Nothing of it is open any more.
    pub(super) fn take_pair(&mut self, names: &[PortName; 2]) -> Option<Taken> {
        let at = self.find_pair(names)?;
        self.close_ways(at);
        let mut pair = self.pairs.remove(at);
        let is_ours = |one: &mut Looking| pair.lanes.contains(&one.lane());
        let looking = self.looking.extract_if(.., is_ours).collect();
        let (mut lanes, mut turned) = (Vec::new(), Vec::new());
        for &id in &pair.lanes {
            // Given back finished.
            turned.extend(self.worker(id).remove(vec![id]));
            lanes.extend(self.lanes.remove(id).map(|lane| (id, lane)));
        }
        let gates = pair.gates.drain(..);
        close(turned.iter_mut().map(|(_, lane)| lane.vacate()), gates);
        let ports = pair.ports.into_iter();
        // The one of a hairpin is there once.
        let ports = ports.filter_map(|id| Some((id, self.ports.remove(id)?)));
        Some(Taken {
            at,
            ports: ports.collect(),
            pair,
            lanes,
            turned,
            looking,
        })
    }

    /// Puts a pair back to where it was, closed as it is; its ports. Those that were taken out after it are back, and those added are gone.
    pub(super) fn put_back(&mut self, taken: Taken) -> [usize; 2] {
        let mut taken = taken;
        taken
            .ports
            .into_iter()
            .for_each(|(id, port)| self.ports.put_back(id, port));
        taken
            .lanes
            .into_iter()
            .for_each(|(id, lane)| self.lanes.put_back(id, lane));
        let ports = taken.pair.ports;
        self.pairs.insert(taken.at, taken.pair);
        for (id, lane) in taken.turned {
            self.worker(id).add(id, lane);
        }
        self.looking.append(&mut taken.looking);
        ports
    }
}
