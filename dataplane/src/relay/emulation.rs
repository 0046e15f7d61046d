//! Emulated links of a running relay: they change between two turns, and what they hold goes on.

use super::{Inner, LaneInfo, Relay};
use crate::{
    config::{Backend, Config, LinkSettings},
    error::Result,
    stage::link::Link as LinkStage,
};

impl Relay {
    /// Emulates a link between two ports in one direction, or changes the one there is: from its next turn on, and what is
    /// held goes on.
    ///
    /// # Errors
    /// [`Error::Config`](crate::error::Error::Config) with every mistake; nothing changes then.
    pub fn set_link(&self, link: LinkSettings) -> Result<()> {
        let mut config = self.config();
        config.set_link(link);
        self.apply(config).map(drop)
    }
}

impl Inner {
    /// Whether a pair that AF_XDP may carry because nobody said otherwise gets its first link: [`join`](crate::join) chooses
    /// packet sockets then.
    pub(super) fn link_comes(&self, pair: usize, old: &Config) -> bool {
        let [a, b] = self.pairs[pair].ports.map(|id| &self.ports[id]);
        let is_linked = |config: &Config| config.is_linked(&a.name, &b.name);
        let receives_by = self.pair_config(pair).receives_by();
        is_linked(&self.config)
            && !is_linked(old)
            && matches!(receives_by, Backend::Auto | Backend::Fastest)
            && [a, b].iter().all(|port| port.interface.kind.is_none())
    }

    /// Brings the links of a pair that stays open to the settings there are now. Says what has changed.
    pub(super) fn change_links(&mut self, pair: usize, old: &Config, done: &mut Vec<String>) {
        for id in self.pairs[pair].lanes.clone() {
            let LaneInfo { rx, tx, .. } = self.lanes[id];
            let (from, to) = (&self.ports[rx].name, &self.ports[tx].name);
            let now = self.config.link_settings(from, to);
            if old.link_settings(from, to) == now {
                continue;
            }
            // A link that is no more passes everything at once: what it holds must still come out.
            let settings = now.unwrap_or_default();
            let name = format!("{from}>{to}");
            done.push(format!("link {name}: {settings}"));
            match &self.lanes[id].link {
                // Checked with the rest of the settings.
                Some(link) => link.replace(settings),
                None => {
                    let stage = LinkStage::new(settings, &name);
                    self.lanes[id].link = Some(stage.handle());
                    self.worker(id).push_stage(id, Box::new(stage));
                }
            }
            self.worker(id).wake();
        }
    }
}
