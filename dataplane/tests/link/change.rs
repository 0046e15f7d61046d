//! Links that are changed while they run, clocks that jump, lanes that end.

use super::*;
use proptest::prelude::*;

#[test]
fn what_is_held_goes_on() {
    let mut bed = Bed::new("delay 100ms");
    bed.burst(100, 0..10);
    bed.run_until(50 * MS);
    bed.set("delay 10ms");
    bed.burst(100, 10..20);
    bed.run_out();
    // The new ones would be earlier, and wait: a line that is shortened does not reorder.
    assert_eq!(bed.numbers(), (0..20).collect::<Vec<_>>());
    assert!(bed.times().iter().all(|time| *time == 100 * MS));
    bed.run_until(S);
    bed.burst(100, 20..21);
    bed.run_out();
    assert_eq!(bed.times().pop(), Some(S + 10 * MS));
    assert_eq!(bed.link.snapshot().settings, "delay 10ms");
}

#[test]
fn a_rate_changes_under_load() {
    let mut bed = Bed::new("rate 1mbit limit 1000p");
    bed.burst(1250, 0..100);
    bed.run_until(105 * MS);
    bed.set("rate 10mbit limit 1000p");
    bed.run_out();
    // Ten at the old rate, the one being sent too, the others at the new one.
    let wanted = (1..=11)
        .map(|n| n * 10 * MS)
        .chain((1..=89).map(|n| 110 * MS + n * MS));
    assert_eq!(bed.times(), wanted.collect::<Vec<_>>());
    // Taken away, it holds nothing up.
    bed.burst(1250, 0..100);
    bed.set("delay 0s");
    bed.run_until(bed.now_ns + MS);
    bed.run_out();
    assert_eq!(bed.out.len(), 200);
}

#[test]
fn mistakes_change_nothing() {
    let bed = Bed::new("delay 5ms");
    let mut bad = settings("delay 5ms");
    bad.memory = 1;
    bad.queue.limit = Some(l2relay::stage::link::Limit::Packets(1));
    assert_eq!(bed.link.set(bad).unwrap_err().len(), 2);
    assert_eq!(bed.link.settings().to_string(), "delay 5ms");
}

/// The clock of a lane only goes forward; by how much at once it does not matter.
#[test]
fn a_clock_that_jumps() {
    let mut bed =
        Bed::new("rate 1mbit delay 100ms limit 100p slot 1ms 2ms at 1s rate 2mbit repeat 3s");
    bed.burst(1250, 0..50);
    bed.now_ns = u64::MAX / 2;
    bed.turn();
    assert_eq!(bed.out.len(), 50);
    bed.burst(1250, 0..50);
    bed.run_out();
    assert_eq!(bed.out.len(), 100);
    // A year asleep is no lateness of the frames that come after.
    let late = bed.link.snapshot().lateness;
    assert_eq!(late.count, 100);
    assert!(late.p50_ns > 1_000_000_000 || late.buckets.iter().any(|[bound, _]| *bound < 1000));
    bed.now_ns = u64::MAX;
    bed.turn();
}

#[test]
fn lateness_is_what_the_clock_says() {
    let mut bed = Bed::new("delay 10ms");
    for n in 0..100u64 {
        bed.now_ns = n * S;
        bed.burst(60, 0..1);
        bed.now_ns = n * S + 10 * MS + n * 1000;
        bed.turn();
    }
    let late = bed.link.snapshot().lateness;
    assert_eq!(
        (late.count, late.max_ns, late.sum_ns),
        (100, 99_000, 4_950_000)
    );
    assert!(
        (49_000..=49_000 * 17 / 16).contains(&late.p50_ns),
        "{late:?}"
    );
    assert!((98_000..=99_000).contains(&late.p99_ns), "{late:?}");
}

#[test]
fn a_lane_that_ends_counts_what_it_held() {
    let mut bed = Bed::new("rate 1mbit delay 100ms limit 100p duplicate 50% seed 1");
    bed.burst(1250, 0..50);
    bed.run_until(120 * MS);
    let sent = bed.out.len() as u64;
    bed.lane.close();
    bed.lane.finish(bed.now_ns);
    let tally = bed.tally();
    assert!(tally.is_conserved() && tally.held == 0);
    assert_eq!(
        tally.dropped_for(Reason::Stopped),
        50 + tally.created - sent
    );
}

/// A transmit side that is full or down: the frames wait, or are counted, and none is sent twice.
#[test]
fn a_transmit_side_that_takes_nothing() {
    let (rx, _, mut sender) = memory::port(64, 0);
    let (_, tx, mut receiver) = memory::port(4, 1514);
    let pool = FramePool::ordinary(PoolSize {
        small: 16,
        large: 0,
    })
    .unwrap();
    let link = Box::new(Link::new(settings("delay 1ms"), "a>b"));
    let mut lane = Lane::new(Box::new(rx), vec![link], Box::new(tx), pool);
    (0..12).for_each(|n| sender.send(Packet::new(&numbered(60, n))).unwrap());
    lane.turn(0);
    lane.turn(5 * MS);
    assert_eq!(
        (
            lane.counters().read().tx_packets,
            lane.counters().read().held
        ),
        (4, 8)
    );
    let first: Vec<u32> = (0..4)
        .map(|_| number(&receiver.receive().unwrap()))
        .collect();
    lane.turn(6 * MS);
    let second: Vec<u32> = (0..4)
        .map(|_| number(&receiver.receive().unwrap()))
        .collect();
    assert_eq!([first, second].concat(), (0..8).collect::<Vec<_>>());
    receiver.set_up(false);
    lane.turn(7 * MS);
    let tally = lane.counters().read();
    assert_eq!((tally.held, tally.dropped_for(Reason::LinkDown)), (0, 4));
    assert!(tally.is_conserved());
}

fn words() -> impl Strategy<Value = String> {
    let part = |list: &[&'static str]| {
        let mut list = list.to_vec();
        list.push("");
        prop::sample::select(list)
    };
    (
        part(&[
            "rate 1mbit limit 5p",
            "rate 100mbit limit 4kb drophead",
            "rate 3mbit limit 9ms",
            "rate 1mbit codel",
            "rate 2mbit pie ecn",
            "rate 1mbit red min 1p max 3p",
        ]),
        part(&[
            "delay 1ms",
            "delay 5ms 5ms",
            "delay 2ms 9ms unordered",
            "delay 3ms 1ms 50% distribution pareto reorder 20%",
        ]),
        part(&[
            "loss 30%",
            "loss gemodel 10% 30%",
            "loss state 10% 20% 10% 30% 5%",
            "loss pattern 0101 ecn",
        ]),
        part(&[
            "duplicate 30%",
            "duplicate 30% 50% corrupt 50%",
            "corrupt 100%",
        ]),
        part(&["slot 1ms 2ms packets 3", "slot 500us"]),
        part(&[
            "order loss,delay,rate",
            "order duplicate,corrupt,slot",
            "order delay,rate,loss",
        ]),
        part(&[
            "memory 128kb",
            "at 5ms down at 8ms up repeat 20ms",
            "at 5ms delay 1ms over 5ms",
        ]),
    )
        .prop_map(|parts| {
            let (a, b, c, d, e, f, g) = parts;
            [a, b, c, d, e, f, g, "seed 7"].join(" ")
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever the links are, in whatever order they follow each other: conserved at every turn (the bed sees to it), and in
    /// the end everything is out or counted.
    #[test]
    fn nothing_disappears(
        links in prop::collection::vec(words(), 1..4),
        steps in prop::collection::vec((0u64..3_000_000, 0usize..6, 18usize..2000, 0usize..20), 1..80),
    ) {
        let mut bed = Bed::new(&links[0]);
        let mut sent = 0u32;
        for (wait_ns, count, len, change) in steps {
            bed.run_until(bed.now_ns + wait_ns);
            bed.burst(len, sent..sent + count as u32);
            sent += count as u32;
            if let Some(words) = links.get(change) {
                bed.set(words);
            }
        }
        bed.run_out();
        let tally = bed.tally();
        prop_assert_eq!(tally.rx_packets, u64::from(sent));
        prop_assert_eq!(tally.tx_packets, bed.out.len() as u64);
        prop_assert_eq!(bed.link.snapshot().memory_bytes, 0);
        prop_assert_eq!(bed.link.snapshot().queue_packets, 0);
    }
}
