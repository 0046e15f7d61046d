//! What the usual tools say: iperf3 with TCP and UDP, sockperf's throughput.

use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::{Metric, Outcome, UDP, load, set_hosts, takes};
use crate::peers::scene::Scene;
use crate::rounds::figure::Figure;
use crate::traffic::{Figures, Load, Protocol};

/// iperf3 over TCP.
pub(super) struct Tcp {
    /// Connections.
    pub(super) streams: u32,
    /// Whether the hosts' offloads are left as they are; else they are switched off.
    pub(super) offloads: bool,
}

/// What is switched off where TCP is to send segments one by one.
const OFF: &str = "tx off tso off gso off gro off";

impl Tcp {
    fn load(&self) -> Load {
        Load::Iperf3 {
            protocol: Protocol::Tcp,
            streams: self.streams,
        }
    }
}

impl Metric for Tcp {
    fn name(&self) -> String {
        let off = if self.offloads { "" } else { "-off" };
        match self.streams {
            1 => format!("tcp{off}"),
            streams => format!("tcp{off}-{streams}"),
        }
    }

    fn figures(&self) -> Vec<Figure> {
        let flows = match self.streams {
            1 => "one flow".into(),
            streams => format!("{streams} flows"),
        };
        let off = if self.offloads {
            ""
        } else {
            ", hosts' offloads off"
        };
        vec![Figure::more(
            format!("{}-goodput", self.name()),
            format!("TCP goodput, {flows}{off}"),
            "Gbit/s",
        )]
    }

    fn takes(&self, time: Duration) -> Duration {
        takes(&self.load(), time)
    }

    fn measure(&self, scene: &Scene<'_>) -> Result<Outcome> {
        if !self.offloads {
            set_hosts(scene, OFF)?;
        }
        let what = self.load();
        Ok(match load(scene, &what)? {
            Ok(Figures::Goodput(goodput)) => Outcome::values([goodput.received_bps / 1e9]),
            Ok(_) => bail!("{what} gave no goodput"),
            Err(silence) => Outcome::NoConnection(silence),
        })
    }
}

/// iperf3 over UDP, as fast as it can.
pub(super) struct Udp;

const IPERF3_UDP: Load = Load::Iperf3 {
    protocol: Protocol::Udp,
    streams: 1,
};

impl Metric for Udp {
    fn name(&self) -> String {
        "udp".into()
    }

    fn figures(&self) -> Vec<Figure> {
        vec![
            Figure::more("udp-goodput", "iperf3 UDP, received", "Gbit/s"),
            Figure::less("udp-lost", "iperf3 UDP, lost", "%"),
        ]
    }

    fn takes(&self, time: Duration) -> Duration {
        takes(&IPERF3_UDP, time)
    }

    fn measure(&self, scene: &Scene<'_>) -> Result<Outcome> {
        Ok(match load(scene, &IPERF3_UDP)? {
            Ok(Figures::Goodput(goodput)) => {
                let lost = goodput.lost_percent.context("iperf3 counted no loss")?;
                Outcome::values([goodput.received_bps / 1e9, lost])
            }
            Ok(_) => bail!("{IPERF3_UDP} gave no goodput"),
            Err(silence) => Outcome::NoConnection(silence),
        })
    }
}

/// sockperf's throughput: messages that nobody answers.
pub(super) struct Throughput {
    /// Bytes of a message.
    pub(super) size: u32,
}

impl Throughput {
    fn load(&self) -> Load {
        Load::Throughput {
            protocol: UDP,
            size: self.size,
        }
    }
}

impl Metric for Throughput {
    fn name(&self) -> String {
        format!("throughput-{}", self.size)
    }

    fn figures(&self) -> Vec<Figure> {
        vec![Figure::more(
            format!("{}-received", self.name()),
            format!("sockperf throughput, {} B, received", self.size),
            "kmsg/s",
        )]
    }

    fn takes(&self, time: Duration) -> Duration {
        takes(&self.load(), time)
    }

    fn measure(&self, scene: &Scene<'_>) -> Result<Outcome> {
        let what = self.load();
        Ok(match load(scene, &what)? {
            Ok(Figures::Throughput(t)) => Outcome::values([t.received as f64 / t.seconds / 1e3]),
            Ok(_) => bail!("{what} gave no throughput"),
            Err(silence) => Outcome::NoConnection(silence),
        })
    }
}
