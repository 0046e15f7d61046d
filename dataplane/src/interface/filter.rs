//! Filters of tc on an interface's ingress.

use std::io;

use netlink_packet_core::NLM_F_DUMP;
use netlink_packet_route::{
    RouteNetlinkMessage,
    tc::{TcAttribute, TcFilterBpfOption, TcHandle, TcHeader, TcMessage, TcOption},
};

use super::{Interface, netlink::ask};

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
        // TC_H_CLSACT and TC_H_MIN_INGRESS (include/uapi/linux/pkt_sched.h).
        let parent = TcHandle::from(0xffff_fff2_u32);
        let header = TcHeader {
            index: self.index.cast_signed(),
            parent,
            ..TcHeader::default()
        };
        let question = TcMessage::from_parts(header, Vec::new());
        let answers = ask(&RouteNetlinkMessage::GetTrafficFilter(question), NLM_F_DUMP)?;
        Ok(answers
            .into_iter()
            .filter_map(Filter::from_message)
            .collect())
    }
}

impl Filter {
    fn from_message(message: RouteNetlinkMessage) -> Option<Self> {
        let RouteNetlinkMessage::NewTrafficFilter(message) = message else {
            return None;
        };
        // The first of a priority is its chain, without a handle; the filters follow.
        if u32::from(message.header.handle) == 0 {
            return None;
        }
        let mut filter = Self {
            kind: String::new(),
            program: None,
        };
        for attribute in message.attributes {
            match attribute {
                TcAttribute::Kind(kind) => filter.kind = kind,
                TcAttribute::Options(options) => {
                    filter.program = options.into_iter().find_map(|option| match option {
                        TcOption::Bpf(TcFilterBpfOption::ProgName(name)) => Some(name),
                        _ => None,
                    });
                }
                _ => {}
            }
        }
        Some(filter)
    }
}
