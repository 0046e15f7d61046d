//! Properties of coalescing: any burst, merged and cut again, is the burst that came.

#[path = "../fuzz/src/coalesce.rs"]
mod entry;

use l2relay::memory::Offload;
use proptest::prelude::*;
use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};

use entry::{END, Outcome, Packet, check, fuzz};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// The fuzz target's own entry, for a bounded time.
    #[test]
    fn any_bytes(data in prop::collection::vec(any::<u8>(), 0..6000)) {
        fuzz(&data);
    }

    /// Bursts in which most frames could join.
    #[test]
    fn mostly_alike(fresh: bool, how in any::<[u8; 3]>(), length: u8, choices in prop::collection::vec((0usize..3, any::<[u8; 13]>()), 0..300)) {
        fuzz(&alike(fresh, how, length, choices));
    }
}

/// Bytes for frames of three flows at most that are alike in most: of one length, and one in ten shorter, spoilt or changed.
fn alike(
    fresh: bool,
    how: [u8; 3],
    length: u8,
    choices: impl IntoIterator<Item = (usize, [u8; 13])>,
) -> Vec<u8> {
    let how = how.map(|how| if how == END { how ^ 1 } else { how });
    let mut data = vec![fresh.into()];
    for (at, rest) in choices {
        let odd = rest[0] < 26;
        let (spoil, change, order) = match rest[1] & 3 {
            _ if !odd => (0xff, 0, 0xff),
            0 => (rest[2], 0, 0xff),
            1 => (0xff, rest[2], 0xff),
            2 => (0xff, 0, rest[2]),
            _ => (0xff, 0, 0xff),
        };
        let length = if odd && rest[1] & 3 == 3 {
            rest[2]
        } else {
            length
        };
        data.extend([how[at], length, spoil, change, order]);
        data.extend(&rest[3..12]);
        // As many as a spoilt frame takes.
        data.extend(match spoil {
            1..=40 => &rest[11..],
            41..=60 => &rest[12..],
            _ => &[],
        });
    }
    data
}

/// What is generated reaches what it is for: most frames that could join do.
#[test]
fn frames_that_are_mostly_alike_are_mostly_merged() {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let mut bytes = move || {
        let mut bytes = [0; 13];
        random.fill_bytes(&mut bytes);
        bytes
    };
    // The last are longer than the port sends.
    for length in [0x00, 0x1f, 0x20, 0x2f, 0x30, 0x3f] {
        let (mut merged, mut came) = (0, 0);
        for _ in 0..20 {
            let how = *bytes().first_chunk().expect("three");
            let choices = (0..300).map(|_| {
                let rest = bytes();
                (usize::from(rest[12]) % 3, rest)
            });
            for outcome in fuzz(&alike(true, how, length, choices.collect::<Vec<_>>())) {
                merged += outcome.merged;
                came += outcome.left - outcome.super_frames + outcome.merged;
            }
        }
        assert_eq!(came, 20 * 300);
        let as_meant = match length {
            0x3f => 20 * merged < came,
            _ => 2 * merged > came,
        };
        assert!(as_meant, "length {length:#x}: {merged} of {came}");
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
    let outcome = check(&[burst.clone(), burst], false);
    let three = || Outcome {
        left: 3,
        super_frames: 3,
        merged: 130,
    };
    assert_eq!(outcome, [three(), three()]);
}

#[test]
fn a_frame_with_a_wrong_checksum_stays_so_and_parts_those_around_it() {
    let mut burst: Vec<Packet> = (0..9u8).map(|n| datagram(&[n; 20])).collect();
    burst[4].0[60] ^= 1;
    let outcome = check(&[burst], true);
    assert_eq!(
        outcome,
        [Outcome {
            left: 3,
            super_frames: 2,
            merged: 8,
        }]
    );
}
