#!/usr/bin/python3
"""ComNetsEmu's DPDK example in Mininet: client and server on a switch that sends what the client sends through the relay.

    client -- (delay) -- s1 -- (delay) -- server        s1: client -> relay -> server; answers go directly
                          |
                        relay

The switch is a Linux bridge in a namespace of its own, with steering rules by tc: neither Open vSwitch nor netem is needed. The
delays are played by l2relay too (--link). As root:  docker/mininet/chain.py --l2relay target/release/l2relay
"""

import argparse
import re
import subprocess
import sys
import time

from mininet.log import setLogLevel
from mininet.net import Mininet
from mininet.node import Switch


class Bridge(Switch):
    """A Linux bridge, in the switch's own namespace."""

    def __init__(self, name, **params):
        super().__init__(name, **{**params, "inNamespace": True})

    def start(self, _controllers):
        self.cmd("ip link add br0 type bridge && ip link set br0 up")
        for port in self.intfNames():
            if port != "lo":
                self.cmd(f"ip link set {port} master br0 up")

    def steer(self, client, relay, server):
        """What the OpenFlow rules of ComNetsEmu's chain.py do: UDP and TCP from the client go through the relay."""
        # A broadcast that comes back from the relay would teach the bridge that the client is there.
        self.cmd(f"bridge link set dev {relay} learning off flood off mcast_flood off bcast_flood off")
        for source, target in ((client, relay), (relay, server)):
            self.cmd(f"tc qdisc add dev {source} ingress")
            for protocol in (17, 6):
                self.cmd(
                    f"tc filter add dev {source} parent ffff: protocol ip u32 match ip protocol {protocol} 0xff "
                    f"action mirred egress redirect dev {target}"
                )


class Chain:
    """The network, and what runs in it."""

    def __init__(self, options):
        self.options = options
        self.running = []
        self.relaying = None
        self.net = Mininet(switch=Bridge, controller=None, waitConnected=False)
        add = self.net.addHost
        self.client = add("client", ip="10.0.0.100/24")
        self.server = add("server", ip="10.0.0.200/24")
        self.relay = add("relay", ip=None)
        self.switch = self.net.addSwitch("s1")
        self.ports = [self.join(end) for end in (self.client, self.server)]
        self.ports.append(self.net.addLink(self.relay, self.switch, intfName1="relay-s1").intf2.name)
        for node in [*self.net.hosts, self.switch]:
            node.cmd("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1")
        self.net.start()
        for node in self.net.hosts:
            for port in node.intfNames():
                node.cmd(f"ip link set {port} up")

    def join(self, end):
        """Joins a host with the switch, through a node that plays the delay; gives the switch's port."""
        if not self.options.delay:
            return self.net.addLink(end, self.switch).intf2.name
        node = self.net.addHost(f"d-{end.name}", ip=None)
        self.net.addLink(end, node, intfName2="near")
        return self.net.addLink(node, self.switch, intfName1="far").intf2.name

    def start(self, node, *arguments):
        """Starts l2relay in a node, and waits until it forwards."""
        process = node.popen([self.options.l2relay, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.running.append(process)
        for line in process.stderr:
            if line.strip() == "ready":
                return process
        sys.exit(f"l2relay did not start in {node.name}: {' '.join(arguments)}")

    def play_delays(self):
        for node in self.net.hosts:
            if node.name.startswith("d-"):
                delay = self.options.delay
                self.start(
                    node, "run", "--pair", "near,far", "--link", f"near>far delay {delay}", "--link", f"far>near delay {delay}"
                )

    def start_relay(self):
        core = self.options.relay_cpu
        if self.options.l2fwd:
            line = (
                f"l2fwd -l {core} -m 256 --vdev=eth_af_packet0,iface=relay-s1 --no-pci --single-file-segments "
                "-- -p 1 --no-mac-updating"
            )
            self.relaying = self.start(self.relay, *line.split())
        else:
            self.relaying = self.start(self.relay, "run", "--hairpin", "relay-s1", "--cores", str(core))
        self.switch.steer(*(self.ports[at] for at in (0, 2, 1)))

    def measure(self):
        """sockperf under load, as ComNetsEmu does it; gives what the client printed."""
        cpu = ["taskset", "-c", str(self.options.host_cpu)]
        address = self.server.IP()
        server = self.server.popen([*cpu, "sockperf", "server", "-i", address], stdout=subprocess.DEVNULL)
        self.running.append(server)
        time.sleep(0.5)
        client = self.client.popen(
            [*cpu, "sockperf", "under-load", "-i", address, "-t", str(self.options.seconds), "--mps", str(self.options.mps),
             "--reply-every", "1"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        return re.sub(r"\x1b\[[0-9;]*m", "", client.communicate(timeout=self.options.seconds + 30)[0])

    def stop(self):
        """Ends everything; gives the relay's last statistics."""
        for process in self.running:
            process.terminate()
        texts = {process: process.communicate(timeout=10)[0] for process in self.running}
        self.net.stop()
        return texts.get(self.relaying)


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--l2relay", default="l2relay", help="the program")
    options.add_argument("--l2fwd", action="store_true", help="start it by the command line of DPDK's l2fwd")
    options.add_argument("--no-relay", action="store_true", help="measure without a relay")
    options.add_argument("--delay", default="50ms", help="of the client's and of the server's link, one way; '' for none")
    options.add_argument("--seconds", type=int, default=10)
    options.add_argument("--mps", type=int, default=50, help="messages a second")
    options.add_argument("--host-cpu", type=int, default=0)
    options.add_argument("--relay-cpu", type=int, default=1)
    options = options.parse_args()
    setLogLevel("warning")
    chain = Chain(options)
    try:
        chain.play_delays()
        if not options.no_relay:
            chain.start_relay()
        lost = chain.net.ping([chain.client, chain.server], timeout="3")
        if lost:
            sys.exit(f"{lost} % of the pings were lost")
        text = chain.measure()
    finally:
        statistics = chain.stop()
    if statistics:
        print(statistics.strip().split("\n\n")[-1])
    print("\n".join(line for line in text.splitlines() if re.search(r"avg-|percentile|Total|MessageRate|dropped|MAX|MIN", line)))
    if "percentile" not in text:
        sys.exit(f"sockperf measured nothing:\n{text}")


if __name__ == "__main__":
    main()
