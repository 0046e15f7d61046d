//! One seed, the same decisions: here, anywhere, and in years.

use super::*;

/// What becomes of 64 frames, one a millisecond: a letter or a digit each.
fn record(words: &str) -> String {
    let mut bed = Bed::new(words);
    for n in 0..64 {
        bed.run_until(u64::from(n) * MS);
        bed.burst(60, n..n + 1);
    }
    bed.run_out();
    (0..64u32)
        .map(|n| {
            let mine: Vec<_> = bed
                .out
                .iter()
                .filter(|(_, p)| p.bytes[..18] == numbered(60, n)[..18])
                .collect();
            match mine.len() {
                0 => '-',
                1 if mine[0].1.bytes != numbered(60, n) => 'x',
                1 => '.',
                _ => '2',
            }
        })
        .collect()
}

/// What a link with this seed has decided since there were links. If this fails, recorded experiments are void: don't
/// change the table, change the code back.
#[test]
fn decisions_are_those_recorded() {
    let all = "delay 1ms loss 10% duplicate 10% corrupt 10% seed 42";
    for (words, wanted) in RECORDED {
        assert_eq!(record(words), *wanted, "{words}");
    }
    // A stream for each effect: one more effect shifts nobody else's decisions.
    let alone = record("loss 10% seed 42");
    let lost = |text: &str| text.chars().map(|c| c == '-').collect::<Vec<_>>();
    assert_eq!(lost(&alone), lost(&record(all)));
    assert_eq!(record(all), record(all));
    assert_ne!(record(all), record(&all.replace("42", "43")));
}

/// Delays in microseconds of the first frames.
#[test]
fn jitter_is_as_recorded() {
    for (words, wanted) in JITTER {
        let mut bed = Bed::new(words);
        bed.burst(60, 0..8);
        bed.run_out();
        let mut found = vec![0; 8];
        bed.out
            .iter()
            .for_each(|(time, packet)| found[number(packet) as usize] = time / 1000);
        assert_eq!(found, wanted, "{words}");
    }
}

/// Which frames come in which order, and which are dropped, where effects depend on times as well: a frame of 1250 bytes each
/// 5 ms, twice what 1 Mbit/s carries.
#[test]
fn what_depends_on_time_is_as_recorded() {
    let found = |(words, _): &(&str, &str)| {
        let mut bed = Bed::new(words);
        for n in 0..96 {
            bed.run_until(u64::from(n) * 5 * MS);
            bed.burst(1250, n..n + 1);
        }
        bed.run_out();
        let numbers: Vec<String> = bed.numbers().iter().map(u32::to_string).collect();
        numbers.join(" ")
    };
    let found: Vec<String> = ORDERS.iter().map(found).collect();
    let wanted: Vec<&str> = ORDERS.iter().map(|(_, wanted)| *wanted).collect();
    assert_eq!(found, wanted);
}

/// Slots, in microseconds after the frame that asked for each.
#[test]
fn slots_are_as_recorded() {
    let mut bed = Bed::new("slot 1ms 9ms seed 1");
    for n in 0..8 {
        bed.run_until(u64::from(n) * 20 * MS);
        bed.burst(60, n..n + 1);
    }
    bed.run_out();
    let waits = bed.times().into_iter().zip(0..);
    let waits: Vec<u64> = waits
        .map(|(time, n): (u64, u64)| (time - n * 20 * MS) / 1000)
        .collect();
    assert_eq!(waits, SLOTS);
}

/// Which bit of a frame is turned over.
#[test]
fn corrupted_bits_are_as_recorded() {
    let mut bed = Bed::new("corrupt 100% seed 1");
    bed.burst(60, 0..8);
    bed.run_out();
    let bits = bed.out.iter().zip(0..).map(|((_, packet), n)| {
        let sent = numbered(60, n);
        let differs = |bit: &usize| (packet.bytes[bit / 8] ^ sent[bit / 8]) >> (bit % 8) & 1 == 1;
        (0..60 * 8).find(differs).unwrap_or_default()
    });
    assert_eq!(bits.collect::<Vec<_>>(), BITS);
}

/// Another link with the same seed decides otherwise: both directions do not lose the same frames.
#[test]
fn links_are_independent() {
    let losses = |name: &str| {
        let (rx, _, mut sender) = memory::port(64, 0);
        let (_, tx, mut receiver) = memory::port(64, 1514);
        let pool = FramePool::ordinary(PoolSize {
            small: 64,
            large: 0,
        })
        .unwrap();
        let link = Box::new(Link::new(settings("loss 50% seed 1"), name));
        let mut lane = Lane::new(Box::new(rx), vec![link], Box::new(tx), pool);
        (0..64).for_each(|n| sender.send(Packet::new(&numbered(60, n))).unwrap());
        lane.turn(0);
        std::iter::from_fn(|| receiver.receive())
            .map(|packet| number(&packet))
            .collect::<Vec<_>>()
    };
    assert_eq!(losses("a>b"), losses("a>b"));
    assert_ne!(losses("a>b"), losses("b>a"));
}

const RECORDED: &[(&str, &str)] = &[
    (
        "loss 10% seed 42",
        "....................--.-.......................-.--.............",
    ),
    (
        "delay 1ms loss 10% duplicate 10% corrupt 10% seed 42",
        ".........2..........--2-x.......2.x............-2--.....22....xx",
    ),
    (
        "loss 30% 50% seed 1",
        "............---........----...---...............---.....-..--...",
    ),
    (
        "loss gemodel 10% 30% 80% 2% seed 1",
        "........-----...--...........--....---....--..........-.........",
    ),
    (
        "loss state 10% 30% 10% 40% 5% seed 1",
        "............--.........-..-...-.................-.......-..-..-.",
    ),
];

const JITTER: &[(&str, [u64; 8])] = &[
    (
        "delay 10ms 5ms unordered seed 1",
        [11838, 6327, 7575, 13447, 6959, 6409, 12258, 14917],
    ),
    (
        "delay 10ms 2ms distribution normal unordered seed 1",
        [10956, 7774, 8698, 12027, 8287, 7848, 11200, 14780],
    ),
    (
        "delay 10ms 2ms 50% distribution pareto unordered seed 1",
        [9822, 8902, 8841, 9812, 8996, 8777, 9290, 15617],
    ),
];

const ORDERS: &[(&str, &str)] = &[
    (
        "delay 12ms reorder 20% 25% seed 1",
        "0 1 2 3 4 5 8 6 9 7 10 12 13 11 14 15 16 17 20 18 19 21 24 22 23 26 27 25 28 29 30 31 32 33 34 \
         35 36 37 38 41 39 40 42 43 44 47 45 46 48 49 50 51 54 52 55 53 58 56 59 57 60 61 62 63 64 65 66 \
         67 70 68 71 69 72 73 74 75 76 77 78 79 82 80 83 81 84 85 86 87 88 91 89 92 90 95 93 94",
    ),
    (
        "rate 1mbit limit 50p red min 4p max 12p weight 20% seed 1",
        "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 24 25 26 27 28 29 30 32 34 35 37 39 \
         41 43 44 46 48 51 53 57 58 59 62 63 65 67 69 73 74 77 78 80 82 83 85 88 89 91 95",
    ),
    (
        "rate 1mbit limit 50p pie target 20ms seed 1",
        "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 \
         35 36 37 38 39 40 41 42 43 44 45 47 48 49 50 51 52 53 55 56 57 59 60 61 63 64 65 66 68 69 71 72 \
         74 75 76 77 79 80 81 82 83 84 85 86 87 89 91 93 95",
    ),
];

const SLOTS: [u64; 8] = [8876, 4278, 5610, 2895, 8806, 5865, 7168, 3925];

const BITS: [usize; 8] = [471, 369, 220, 336, 195, 272, 173, 361];
