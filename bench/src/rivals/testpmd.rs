//! DPDK's testpmd in the ways its users run it.

use anyhow::Result;

use super::{Rival, Running, START, Setup};
use crate::process::{Program, installed};
use crate::run::Run;
use crate::topology::Topology;

/// Every way: driver, mode, offloads of the hosts.
pub(super) const ALL: [Testpmd; 8] = [
    Testpmd {
        name: "testpmd",
        about: "DPDK's testpmd, io mode, on af_packet; offloads at their defaults",
        driver: "af_packet",
        mode: "io",
        offloads_off: false,
    },
    Testpmd {
        name: "testpmd-txoff",
        about: "DPDK's testpmd after `ethtool -K … tx off`, as its users do",
        driver: "af_packet",
        mode: "io",
        offloads_off: true,
    },
    Testpmd {
        name: "testpmd-xdp",
        about: "DPDK's testpmd, io mode, on af_xdp; offloads at their defaults",
        driver: "af_xdp",
        mode: "io",
        offloads_off: false,
    },
    Testpmd {
        name: "testpmd-xdp-txoff",
        about: "the same after `ethtool -K … tx off`",
        driver: "af_xdp",
        mode: "io",
        offloads_off: true,
    },
    Testpmd {
        name: "testpmd-macswap",
        about: "DPDK's testpmd, macswap mode, on af_packet; offloads at their defaults",
        driver: "af_packet",
        mode: "macswap",
        offloads_off: false,
    },
    Testpmd {
        name: "testpmd-macswap-txoff",
        about: "the same after `ethtool -K … tx off`",
        driver: "af_packet",
        mode: "macswap",
        offloads_off: true,
    },
    Testpmd {
        name: "testpmd-xdp-macswap",
        about: "DPDK's testpmd, macswap mode, on af_xdp; offloads at their defaults",
        driver: "af_xdp",
        mode: "macswap",
        offloads_off: false,
    },
    Testpmd {
        name: "testpmd-xdp-macswap-txoff",
        about: "the same after `ethtool -K … tx off`",
        driver: "af_xdp",
        mode: "macswap",
        offloads_off: true,
    },
];

/// DPDK's own test program, as Debian packages it, on AF_PACKET or AF_XDP sockets and without huge pages.
pub(super) struct Testpmd {
    name: &'static str,
    about: &'static str,
    driver: &'static str,
    mode: &'static str,
    offloads_off: bool,
}

impl Rival for Testpmd {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn missing(&self, setup: &Setup) -> Option<String> {
        if installed("dpdk-testpmd").is_none() {
            return Some("dpdk-testpmd is not installed (Debian: apt-get install dpdk-dev)".into());
        }
        (setup.relay_cpu == setup.other_cpu).then(|| "testpmd needs two CPUs".into())
    }

    fn swaps_macs(&self) -> bool {
        self.mode == "macswap"
    }

    fn start(&self, run: &Run, setup: &Setup, topology: &Topology) -> Result<Running> {
        let site = topology.site()?;
        if self.offloads_off {
            topology.switch_offloads_off(run)?;
        }
        let (main, cpu) = (setup.other_cpu, setup.relay_cpu);
        let devices = site.ports.iter().enumerate();
        let testpmd = Program::new("dpdk-testpmd")
            .args(["-l", &format!("{main},{cpu}"), "--main-lcore"])
            .arg(main)
            .args("--no-huge --no-pci --no-shconf --no-telemetry -m 512".split(' '))
            .args(devices.map(|(i, port)| format!("--vdev=net_{}{i},iface={port}", self.driver)))
            // The default number of buffers does not fit into 512 MB.
            .args("-- --nb-cores=1 --total-num-mbufs=16384 --auto-start".split(' '))
            .arg(format!("--forward-mode={}", self.mode))
            .args((site.ports.len() == 1).then_some("--port-topology=loop"))
            .within(&site.namespace)
            .line_buffered()
            .hold_stdin();
        let mut process = testpmd.start(run)?;
        process.wait_for(run, "Press enter to exit", START)?;
        Ok(Running::process(process, &testpmd))
    }
}
