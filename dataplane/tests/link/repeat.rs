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
