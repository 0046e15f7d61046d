//! Anything through everything: whatever the bytes and the virtio header say, nothing panics and nothing is lost
//! uncounted. On the memory back end, so it needs no root.

use l2relay::{
    lane::Lane,
    memory::{FramePool, LARGE_FRAME, Offload, PoolSize},
    port::memory::{self, Packet},
    stage::{
        Stage,
        filter::UnicastOnly,
        link::{Link, Settings},
        mac::Rewrite,
    },
    wire::ethernet::MacAddress,
};
use proptest::prelude::*;

fn packet() -> impl Strategy<Value = Packet> {
    let len = prop_oneof![
        Just(0),
        0usize..70,
        1500usize..2100,
        Just(14),
        Just(65_549),
        Just(65_550),
        Just(LARGE_FRAME),
        LARGE_FRAME..LARGE_FRAME + 5,
    ];
    // A few bytes at random, repeated: cheaper than 64 KiB of them, and as good at the front, where headers are.
    let seed = prop::collection::vec(any::<u8>(), 1..80);
    (len, seed, any::<[u8; 10]>(), any::<bool>()).prop_map(|(len, seed, header, plain)| Packet {
        bytes: seed.iter().copied().cycle().take(len).collect(),
        offload: if plain {
            Offload::default()
        } else {
            Offload::from_bytes(&header)
        },
    })
}

fn segments(packet: &Packet) -> u64 {
    packet
        .offload
        .segments(&packet.bytes, packet.bytes.len())
        .into()
}

fn link(words: &str) -> Link {
    Link::new(Settings::parse(words).expect("right words"), "a>b")
}

fn stages() -> Vec<Box<dyn Stage>> {
    vec![
        Box::new(Rewrite::Swap),
        Box::new(Rewrite::Update {
            src: MacAddress([2; 6]),
            dst: Rewrite::l2fwd_dst(1),
        }),
        Box::new(UnicastOnly),
        Box::new(link("delay 5us")),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn no_frame_panics_or_disappears(
        packets in prop::collection::vec(packet(), 1..60),
        skipped in 0usize..5,
        steps in prop::collection::vec((0usize..20, 0u64..20_000, any::<bool>(), any::<bool>()), 1..30),
    ) {
        let (rx, _, mut sender) = memory::port(32, 0);
        let (_, tx, mut receiver) = memory::port(8, 1514);
        let pool = FramePool::ordinary(PoolSize { small: 12, large: 4 }).unwrap();
        let stages = stages().into_iter().skip(skipped).collect();
        let mut lane = Lane::new(Box::new(rx), stages, Box::new(tx), pool);
        let (mut packets, mut now_ns, mut came_out, mut sent, mut lost) = (packets.into_iter(), 0, 0, 0, 0);
        for (count, wait_ns, drain, up) in steps {
            for packet in packets.by_ref().take(count) {
                let count = segments(&packet);
                match sender.send(packet) {
                    Ok(()) => sent += count,
                    Err(_) => lost += 1,
                }
            }
            receiver.set_up(up);
            now_ns += wait_ns;
            lane.turn(now_ns);
            let tally = lane.counters().read();
            prop_assert!(tally.is_conserved(), "{:?}", tally);
            while drain && let Some(packet) = receiver.receive() {
                came_out += segments(&packet);
            }
        }
        // Everything that is in comes out or is counted.
        receiver.set_up(true);
        lane.close();
        for _ in 0..200 {
            now_ns += 10_000;
            lane.turn(now_ns);
            while let Some(packet) = receiver.receive() {
                came_out += segments(&packet);
            }
        }
        lane.finish(now_ns);
        let tally = lane.counters().read();
        prop_assert!(tally.is_conserved(), "{:?}", tally);
        prop_assert_eq!(tally.held, 0);
        prop_assert_eq!(lane.pool().outstanding(), 0);
        prop_assert_eq!(tally.rx_packets, sent);
        prop_assert_eq!(tally.kernel_drops, lost);
        if skipped > 1 {
            // No stage rewrote the bytes that segments are counted from.
            prop_assert_eq!(tally.tx_packets, came_out);
        }
    }

    #[test]
    fn a_delay_keeps_order_and_time(
        gaps_ns in prop::collection::vec(0u64..2_000_000, 1..40),
        delay_us in 0u64..5000,
    ) {
        let (rx, _, mut sender) = memory::port(64, 0);
        let (_, tx, mut receiver) = memory::port(64, 1514);
        let pool = FramePool::ordinary(PoolSize { small: 64, large: 0 }).unwrap();
        let delay = link(&format!("delay {delay_us}us"));
        let mut lane = Lane::new(Box::new(rx), vec![Box::new(delay)], Box::new(tx), pool);
        let (mut now_ns, mut due) = (0, Vec::new());
        let mut expect = |lane: &mut Lane, now_ns: u64, due: &mut Vec<(u64, u8)>| {
            lane.turn(now_ns);
            while let Some(packet) = receiver.receive() {
                let (at, serial) = due.remove(0);
                assert!(at <= now_ns && packet.bytes[0] == serial, "{at} {now_ns}");
            }
            assert!(due.iter().all(|(at, _)| *at > now_ns), "late at {now_ns}: {due:?}");
        };
        for (serial, gap) in gaps_ns.into_iter().enumerate() {
            now_ns += gap;
            sender.send(Packet::new(&[serial as u8; 60])).unwrap();
            due.push((now_ns + delay_us * 1000, serial as u8));
            expect(&mut lane, now_ns, &mut due);
        }
        while let Some(next) = lane.appointment_ns() {
            now_ns = next;
            expect(&mut lane, now_ns, &mut due);
        }
        prop_assert!(due.is_empty());
    }
}
