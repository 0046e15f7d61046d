//! Properties of coalescing: any burst, merged and cut again, is the burst that came.

#[path = "../fuzz/src/coalesce.rs"]
mod entry;

use l2relay::memory::Offload;
use proptest::prelude::*;

use entry::{Outcome, Packet, check, fuzz};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// The fuzz target's own entry, for a bounded time.
    #[test]
    fn any_bytes(data in prop::collection::vec(any::<u8>(), 0..6000)) {
        fuzz(&data);
    }

    /// Bursts in which most frames could join: bytes that leave most of the choices alone.
    #[test]
    fn mostly_alike(how in any::<[u8; 3]>(), choices in prop::collection::vec((0usize..3, any::<[u8; 24]>(), prop::bool::weighted(0.1)), 0..300)) {
        let mut data = Vec::new();
        for (at, rest, spoilt) in choices {
            data.extend([how[at] & 0xdf, 0x30 | rest[0] & 0xc0, if spoilt { rest[1] } else { 0xff }]);
            data.extend(&rest[..21]);
        }
        fuzz(&data);
    }
}

/// A datagram of the third flow from here, with DF.
fn datagram(payload: &[u8]) -> Packet {
    let mut bytes = Vec::new();
    let builder = etherparse::PacketBuilder::ethernet2([2; 6], [4; 6])
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
        .udp(7, 9);
    builder.write(&mut bytes, payload).expect("a datagram");
    (bytes, Offload::default())
}

#[test]
fn a_burst_of_one_flow_becomes_super_frames_of_64() {
    let burst: Vec<Packet> = (0..130u8).map(|n| datagram(&[n; 20])).collect();
    let outcome = check(&[burst.clone(), burst]);
    let three = || Outcome {
        left: 3,
        super_frames: 3,
    };
    assert_eq!(outcome, [three(), three()]);
}

#[test]
fn a_frame_with_a_wrong_checksum_stays_so_and_parts_those_around_it() {
    let mut burst: Vec<Packet> = (0..9u8).map(|n| datagram(&[n; 20])).collect();
    burst[4].0[60] ^= 1;
    let outcome = check(&[burst]);
    assert_eq!(
        outcome,
        [Outcome {
            left: 3,
            super_frames: 2
        }]
    );
}
