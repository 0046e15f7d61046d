//! Filters of tc on an interface's ingress.

use std::io;

use netlink_packet_core::NLM_F_DUMP;

use super::Interface;
use super::netlink::{Message, ask, attributes, text};

/// Length of `struct tcmsg`, and where its handle is (`include/uapi/linux/rtnetlink.h`).
const HEADER: usize = 20;
const HANDLE: usize = 8;

/// The ingress of clsact (`TC_H_CLSACT` and `TC_H_MIN_INGRESS`, `include/uapi/linux/pkt_sched.h`).
const INGRESS: u32 = 0xffff_fff2;

/// A program's name among a filter's options (`include/uapi/linux/pkt_cls.h`).
const TCA_BPF_NAME: u16 = 7;

/// One filter, as `tc filter show dev … ingress` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Filter {
    /// `bpf`, `flower`, `matchall` …
    pub(crate) kind: String,
    /// Of a program: its name, as whoever attached it gave it.
    pub(crate) program: Option<String>,
}

impl Interface {
    /// The filters on its ingress now, by clsact or the ingress qdisc.
    pub(crate) fn ingress_filters(&self) -> io::Result<Vec<Filter>> {
        let mut header = [0; HEADER];
        header[4..8].copy_from_slice(&self.index.to_ne_bytes());
        header[12..16].copy_from_slice(&INGRESS.to_ne_bytes());
        let answers = ask(&Message::new(libc::RTM_GETTFILTER, &header), NLM_F_DUMP)?;
        Ok(answers.iter().filter_map(Filter::from_message).collect())
    }
}

impl Filter {
    fn from_message(message: &Message) -> Option<Self> {
        // The first of a priority is its chain, without a handle; the filters follow.
        if message.kind != libc::RTM_NEWTFILTER || message.number(HANDLE) == 0 {
            return None;
        }
        let mut filter = Self {
            kind: String::new(),
            program: None,
        };
        // The kind comes before its options (`tcf_fill_node`, `net/sched/cls_api.c`).
        for (attribute, value) in message.attributes(HEADER) {
            match attribute {
                libc::TCA_KIND => filter.kind = text(value),
                libc::TCA_OPTIONS if filter.kind == "bpf" => {
                    let name = attributes(value).find(|(option, _)| *option == TCA_BPF_NAME);
                    filter.program = name.map(|(_, name)| text(name));
                }
                _ => {}
            }
        }
        Some(filter)
    }
}
