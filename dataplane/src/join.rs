//! Joining two ports: which back end carries a pair, and the halves of the lanes between them.
//!
//! Called by the relay when it starts, and again when an interface was created anew. Receiving and sending may be by
//! different back ends; then each opens its halves, and the lane's frames lie where AF_XDP needs them.

mod choice;
mod merging;
mod packet;
mod pages;
#[cfg(feature = "xdp")]
mod xdp;

use std::{os::fd::BorrowedFd, sync::Arc};

pub(crate) use self::pages::Pages;
#[cfg(feature = "xdp")]
use self::xdp::open_xdp;
use self::{
    choice::{Choice, choose, is_automatic, is_linked},
    merging::Merging,
    packet::open_packet,
};
use crate::{
    coalesce::Kinds,
    config::{Backend, Config, PortName},
    error::{Error, Result},
    interface::Interface,
    memory::FramePool,
    port::{Link, RxQueue, TxQueue, packet::Gate},
    sys::netns,
};

/// A port to join.
#[derive(Clone, Copy)]
pub(crate) struct End<'a> {
    /// The port's id.
    pub(crate) id: usize,
    pub(crate) name: &'a PortName,
    pub(crate) interface: &'a Interface,
    pub(crate) link: &'a Arc<Link>,
    /// Decides which frames packet sockets receive.
    pub(crate) gate: Option<BorrowedFd<'a>>,
}

/// What a lane is made of.
pub(crate) struct Halves {
    /// The id of the port that it receives from.
    pub(crate) from: usize,
    /// The id of the port that it sends by.
    pub(crate) to: usize,
    /// Which it is of those between the same ports.
    pub(crate) queue: usize,
    pub(crate) rx: Box<dyn RxQueue>,
    pub(crate) tx: Box<dyn TxQueue>,
    pub(crate) pool: FramePool,
    /// What is merged of what passes.
    pub(crate) kinds: Kinds,
    /// If packet sockets receive.
    pub(crate) gate: Option<Gate>,
}

/// A pair, open.
pub(crate) struct Joined {
    /// What every lane is made of.
    pub(crate) halves: Vec<Halves>,
    /// By what it is carried, in words.
    pub(crate) how: String,
    /// What its frames lie on.
    pub(crate) pages: Pages,
}

/// Opens the ports of a pair, or the one of a hairpin.
pub(crate) fn join(ends: &[End], config: &Config) -> Result<Joined> {
    let choice = choose(ends, config);
    match open(ends, config, &choice) {
        // Nobody asked for it, so do without.
        Err(error) if choice.rx == Backend::Xdp && is_automatic(config) => {
            let error = error.to_string().replace("\n ", ";");
            let why = Some(format!("no xdp: {error}"));
            let choice = Choice {
                rx: Backend::Packet,
                tx: Backend::Packet,
                why,
            };
            open(ends, config, &choice)
        }
        result => result,
    }
}

fn open(ends: &[End], config: &Config, choice: &Choice) -> Result<Joined> {
    let merging: Vec<Merging> = directions(ends)
        .into_iter()
        .map(|(from, to)| Merging::choose(&ends[from], &ends[to], config, choice))
        .collect();
    let mut joined = if choice.rx == Backend::Xdp || choice.tx == Backend::Xdp {
        let merges = merging
            .iter()
            .any(|merging| merging.kinds != Kinds::default());
        open_xdp(ends, config, choice, merges)?
    } else {
        open_packet(ends, config)?
    };
    for halves in &mut joined.halves {
        let way =
            |&(from, to): &(usize, usize)| (ends[from].id, ends[to].id) == (halves.from, halves.to);
        if let Some(at) = directions(ends).iter().position(way) {
            halves.kinds = merging[at].kinds;
        }
    }
    let mut said: Vec<String> = merging.iter().map(Merging::describe).collect();
    said.dedup();
    joined.how = format!("{}; {}", joined.how, said.join("; back: "));
    if choice.rx == Backend::Xdp && is_linked(ends, config) {
        joined.how +=
            "; the link counts from when a frame is looked at: --rx packet counts from its arrival";
    }
    if let Some(why) = &choice.why {
        joined.how = format!("{} (auto: {why})", joined.how);
    }
    Ok(joined)
}

/// The lanes there are between the ends: from which to which, by their place.
fn directions(ends: &[End]) -> Vec<(usize, usize)> {
    match ends.len() {
        1 => vec![(0, 0)],
        _ => vec![(0, 1), (1, 0)],
    }
}

#[cfg(not(feature = "xdp"))]
fn open_xdp(_: &[End], _: &Config, _: &Choice, _: bool) -> Result<Joined> {
    let mistake = "this l2relay was built without AF_XDP (cargo feature xdp): use packet";
    Err(Error::Config(vec![mistake.into()]))
}

fn within<T: Send>(end: &End, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    netns::within(end.name.netns.as_deref(), work)
        .map_err(|error| Error::system("enter the namespace of", end.name.to_string(), error, ""))?
}
