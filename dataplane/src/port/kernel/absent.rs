//! In a build without BPF programs no way can be opened.

use std::{convert::Infallible, io, os::fd::BorrowedFd};

use super::{End, Options, Passage};
use crate::{
    error::{Error, Result},
    stage::mac::Rewrite,
    stats::Tally,
};

/// There is none.
pub(crate) struct Way(Infallible);

impl Way {
    pub(crate) fn open(_: &End, _: &End, _: &Options, _: Option<Passage>) -> Result<Self> {
        let mistake = "this l2relay was built without BPF programs (cargo feature xdp): use packet";
        Err(Error::Config(vec![mistake.into()]))
    }

    pub(crate) fn set(&mut self, _: &End, _: Option<Rewrite>, _: Option<Passage>) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn read(&self) -> io::Result<Tally> {
        match self.0 {}
    }

    pub(crate) fn gate(&self) -> Option<BorrowedFd<'_>> {
        match self.0 {}
    }

    pub(crate) fn vanished(&mut self) -> u64 {
        match self.0 {}
    }

    pub(crate) fn close(self) -> (io::Result<Tally>, u64) {
        match self.0 {}
    }

    pub(crate) fn is_watched(&self) -> bool {
        match self.0 {}
    }

    pub(crate) fn is_at_xdp(&self) -> bool {
        match self.0 {}
    }

    pub(crate) fn place(&self) -> &'static str {
        match self.0 {}
    }
}

/// Nothing would.
pub(crate) fn takes_none(_: &End) -> Option<String> {
    None
}

/// Nothing is under way.
pub(crate) fn settle() {}
