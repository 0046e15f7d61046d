//! Overload, small rings, and starting into traffic.

use crate::common::{Chain, PATIENCE, Peer, Relay, Signal, cpus, eventually};

/// Where accounts must be exact to the last frame.
const RUNS: &[&[&str]] = &[
    &["--pair", "r0,r1"],
    #[cfg(feature = "xdp")]
    &["--pair", "r0,r1", "--backend", "xdp"],
    #[cfg(feature = "xdp")]
    &["--pair", "r0,r1", "--rx", "xdp", "--tx", "packet"],
];

fn receive_all(chain: &Chain, count: u64) -> Peer {
    Peer::listen(
        &chain.net,
        "server",
        &format!(
            "udp-receive --no-acks --address {} --count {count}",
            Chain::SERVER
        ),
    )
}

fn send(chain: &Chain, count: u64, options: &str) -> serde_json::Value {
    Peer::start(
        &chain.net,
        "client",
        &format!(
            "udp-send --no-acks --address {} --count {count} {options}",
            Chain::SERVER
        ),
    )
    .result()
}

/// More than the ring holds, super-frames among it: what is lost is counted as the kernel's, the rest is in order.
#[test]
fn a_small_ring_loses_frames_but_neither_order_nor_count() {
    for run in RUNS {
        let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
            return;
        };
        let net = &chain.net;
        let relay = Relay::start(net, "relay", &[run, &["--ring", "16"][..]].concat());
        let receiver = receive_all(&chain, 6000);
        relay.signal(Signal::Freeze);
        let sent = send(&chain, 3000, "--flows 4 --large 900");
        relay.signal(Signal::Thaw);
        chain.settle();
        let more = send(&chain, 3000, "--flows 4 --large 900 --gso --segments 30");
        chain.settle();
        let received = receiver.result();
        let last = relay.stop(Signal::Term);
        let way = last.way("r0", "r1");
        assert!(last.port("r0").kernel_drops > 0, "{last:?}");
        // The second sender begins its sequences anew; within each the order holds, so at most each flow steps back once.
        assert_eq!(received["corrupt"], 0, "{received} {sent} {more}");
        assert_eq!(received["received"], way.tx_packets, "{received} {way:?}");
        assert_eq!(way.rx_packets, way.tx_packets + way.lost());
    }
}

/// Snapshots are taken between bursts, so the law holds in each, at full speed too.
#[test]
fn every_snapshot_under_load_is_exact() {
    for run in RUNS {
        let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
            return;
        };
        let net = &chain.net;
        let _sink = Peer::listen(net, "server", &format!("sink --address {}", Chain::SERVER));
        let mut relay = Relay::start(net, "relay", run);
        let load = Peer::listen(
            net,
            "client",
            &format!(
                "flood --address {} --count 200000 --flows 8 --size 64",
                Chain::SERVER
            ),
        );
        let mut seen = 0;
        for _ in 0..60 {
            let way = relay.snapshot().way("r0", "r1");
            assert!(way.rx_packets >= seen, "counters never fall: {way:?}");
            seen = way.rx_packets;
        }
        assert!(seen > 0);
        drop(load);
        relay.stop(Signal::Term);
    }
}

/// A relay that starts while frames pour in sends each at most once, and each flow in order.
fn start_into_traffic(run: &[&str], options: &[&str]) {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    let receiver = receive_all(&chain, 40_000);
    let line = format!(
        "udp-send --no-acks --address {} --count 40000 --flows 16 --large 300",
        Chain::SERVER
    );
    let sender = Peer::start(net, "client", &line);
    assert!(eventually(PATIENCE, || net
        .counters("client", "c0")
        .tx_packets
        > 1000));
    let relay = Relay::start(net, "relay", &[run, options].concat());
    let sent = sender.result();
    chain.settle();
    let received = receiver.result();
    let last = relay.stop(Signal::Term);
    let count = received["received"].as_u64().expect("a count");
    assert!(
        (100..40_000).contains(&count),
        "it did start into traffic: {received} {sent}"
    );
    assert_eq!(
        (&received["doubled"], &received["reordered"]),
        (&0.into(), &0.into()),
        "{received} {last:?}"
    );
    assert_eq!(count, last.way("r0", "r1").tx_packets, "{last:?}");
}

#[test]
fn starting_into_traffic_doubles_and_reorders_nothing() {
    for run in RUNS {
        start_into_traffic(run, &[]);
    }
}

/// With several lanes a direction, the moment before all their sockets share the frames is the dangerous one.
#[test]
fn starting_several_lanes_into_traffic_doubles_and_reorders_nothing() {
    let cores = cpus()
        .iter()
        .map(usize::to_string)
        .collect::<Vec<_>>()
        .join(",");
    start_into_traffic(RUNS[0], &["--queues", "2", "--cores", &cores]);
}
