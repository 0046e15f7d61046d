//! Delay, jitter, reordering, loss, duplicates, corruption, outages, memory.

use super::*;

/// Four standard deviations of a binomial share.
fn bound(p: f64, count: u32) -> f64 {
    4.0 * (p * (1.0 - p) / f64::from(count)).sqrt()
}

/// Frames that come one by one, 100 us apart.
fn stream(words: &str, count: u32) -> Bed {
    let mut bed = Bed::new(words);
    for n in 0..count {
        bed.run_until(u64::from(n) * 100_000);
        bed.burst(60, n..n + 1);
    }
    bed.run_out();
    bed
}

/// By how much each frame that came out was delayed.
fn delays(bed: &Bed) -> Vec<i64> {
    bed.out
        .iter()
        .map(|(time, packet)| *time as i64 - i64::from(number(packet)) * 100_000)
        .collect()
}

#[test]
fn a_delay_is_exact() {
    let bed = stream("delay 12345us", 1000);
    assert!(delays(&bed).iter().all(|delay| *delay == 12_345_000));
}

/// The second counts from when the first was due to hand on, not from the arrival, nor from when somebody looked.
#[test]
fn links_add_up() {
    let size = PoolSize {
        small: 16,
        large: 0,
    };
    let mut bed = Bed::with_links(&["delay 10ms", "rate 8mbit delay 20ms"], size);
    bed.burst(1000, 0..2);
    // Turned late, both times.
    for ms in [13, 17, 25, 30] {
        bed.now_ns = ms * MS;
        bed.turn();
    }
    assert_eq!(bed.out.len(), 0, "{:?}", bed.times());
    assert_eq!(bed.lane.appointment_ns(), Some(31 * MS));
    bed.run_out();
    assert_eq!(bed.times(), [31 * MS, 32 * MS]);
}

#[test]
fn jitter_keeps_order_unless_told() {
    let bed = stream("delay 10ms 5ms seed 1", 5000);
    assert!(bed.numbers().is_sorted());
    assert_eq!(bed.link.snapshot().reordered, 0);
    assert!(
        delays(&bed)
            .iter()
            .all(|delay| (5_000_000..=15_000_000).contains(delay))
    );

    let bed = stream("delay 10ms 5ms unordered seed 1", 5000);
    assert!(!bed.numbers().is_sorted() && bed.link.snapshot().reordered > 1000);
    // Kolmogorov and Smirnov: what comes out of the whole link is the distribution that was asked for.
    let mut found = delays(&bed);
    found.sort_unstable();
    let distance = found.iter().enumerate().map(|(n, delay)| {
        let cdf = (delay - 5_000_000) as f64 / 10e6;
        (cdf - (n as f64 + 0.5) / 5000.0).abs() + 0.5 / 5000.0
    });
    let distance = distance.fold(0.0, f64::max);
    assert!(distance < 1.63 / 5000f64.sqrt(), "{distance}");
    // Below zero is zero.
    let bed = stream("delay 1ms 20ms distribution normal unordered seed 1", 1000);
    assert!(delays(&bed).iter().all(|delay| *delay >= 0) && delays(&bed).contains(&0));
}

#[test]
fn reordering_lets_frames_overtake() {
    let bed = stream("delay 10ms reorder 5% seed 3", 20_000);
    let skipped = delays(&bed).iter().filter(|delay| **delay == 0).count();
    assert!(
        (skipped as f64 / 20_000.0 - 0.05).abs() < bound(0.05, 20_000),
        "{skipped}"
    );
    assert_eq!(
        bed.link.snapshot().reordered,
        skipped as u64 - u64::from(bed.numbers()[0] == 0 && bed.times()[0] == 0)
    );
    // With a gap and certainty: every fifth.
    let bed = stream("delay 10ms reorder 100% gap 5", 100);
    let skipped: Vec<u32> = bed
        .out
        .iter()
        .filter(|(time, packet)| *time == u64::from(number(packet)) * 100_000)
        .map(|(_, packet)| number(packet))
        .collect();
    assert_eq!(skipped, (4..100).step_by(5).collect::<Vec<_>>());
}

#[test]
fn loss_is_binomial() {
    for (words, p) in [
        ("loss 5% seed 1", 0.05),
        ("loss 0.1% seed 2", 0.001),
        ("rate 1gbit delay 1ms loss 50% seed 3", 0.5),
        ("loss 0%", 0.0),
        ("loss 100%", 1.0),
    ] {
        let bed = stream(words, 20_000);
        let lost = bed.dropped(Reason::Lost);
        assert!(
            (lost as f64 / 20_000.0 - p).abs() <= bound(p, 20_000),
            "{words}: {lost}"
        );
        assert_eq!(bed.out.len() as u64 + lost, 20_000);
    }
    let bed = stream("loss pattern 0010", 12);
    assert_eq!(bed.numbers(), [0, 1, 3, 4, 5, 7, 8, 9, 11]);
}

#[test]
fn duplicates_are_created_and_follow_at_once() {
    let bed = stream("delay 1ms duplicate 10% seed 1", 10_000);
    let created = bed.tally().created;
    assert!(
        (created as f64 / 10_000.0 - 0.1).abs() < bound(0.1, 10_000),
        "{created}"
    );
    assert_eq!(bed.out.len() as u64, 10_000 + created);
    let twice = bed.out.windows(2).filter(|pair| pair[0] == pair[1]).count();
    assert_eq!(twice as u64, created);
}

#[test]
fn corruption_turns_over_one_bit_behind_the_addresses() {
    let bed = stream("corrupt 20% seed 1", 10_000);
    let mut places = [0u32; 60 * 8];
    let mut damaged = 0;
    for (n, (_, packet)) in bed.out.iter().enumerate() {
        let was = numbered(60, n as u32);
        let bits: Vec<usize> = (0..60 * 8)
            .filter(|bit| (packet.bytes[bit / 8] ^ was[bit / 8]) >> (bit % 8) & 1 == 1)
            .collect();
        assert!(bits.len() <= 1);
        bits.iter().for_each(|bit| places[*bit] += 1);
        damaged += bits.len() as u32;
    }
    assert!(
        (f64::from(damaged) / 10_000.0 - 0.2).abs() < bound(0.2, 10_000),
        "{damaged}"
    );
    assert_eq!(bed.link.snapshot().corrupted, u64::from(damaged));
    assert!(places[..14 * 8].iter().all(|count| *count == 0));
    let hit = places[14 * 8..].iter().filter(|count| **count > 0).count();
    assert!(hit > 350, "every bit may be hit: {hit} of 368");
}

#[test]
fn what_memory_does_not_hold_is_counted_and_the_rest_goes_on() {
    // 64 KiB are 202 cells of 256 bytes with their bookkeeping.
    let mut bed = Bed::new("delay 1s memory 64kb");
    bed.burst(1500, 0..100);
    let held = bed.tally().held;
    assert_eq!(held, 202 / 6);
    assert_eq!(bed.dropped(Reason::LinkMemory), 100 - held);
    assert!(bed.link.snapshot().memory_bytes <= 64 << 10);
    bed.run_out();
    assert_eq!(bed.numbers(), (0..held as u32).collect::<Vec<_>>());
    assert_eq!(bed.link.snapshot().memory_bytes, 0);
    // And again, for all of it is free.
    bed.burst(1500, 0..20);
    bed.run_out();
    assert_eq!(bed.out.len() as u64, held + 20);
    // A duplicate that there is no room for is made and dropped.
    let mut bed = Bed::new("delay 1s memory 64kb duplicate 100% order duplicate");
    bed.burst(1500, 0..100);
    bed.run_out();
    assert_eq!(
        bed.tally().created + 100 - bed.dropped(Reason::LinkMemory),
        bed.out.len() as u64
    );
}

/// Holding much costs no buffer of the lane, and no more time a frame than holding little.
#[test]
fn ten_megabytes_in_flight() {
    let mut bed = Bed::with_pool("delay 100ms", PoolSize { small: 4, large: 1 });
    for n in 0..8300 {
        bed.run_until(u64::from(n) * 12_000);
        bed.burst(1500, n..n + 1);
    }
    assert!(bed.tally().held > 8200 && bed.tally().dropped_total() == 0);
    bed.run_out();
    assert_eq!(bed.numbers(), (0..8300).collect::<Vec<_>>());
}

#[test]
fn schedules_step_ramp_and_fail() {
    let words = "rate 1mbit limit 10000p loss 0% at 1s rate 2mbit at 2s rate 1mbit over 1s at 3s down at 4s up \
                 at 5s loss 100%";
    let mut bed = Bed::new(words);
    let mut sent = 0;
    // 1250 bytes every 2 ms are 5 Mbit/s: always enough.
    for n in 0..3000 {
        bed.run_until(n * 2 * MS);
        if n < 1500 {
            bed.burst(1250, sent..sent + 1);
            sent += 1;
        }
    }
    let within = |from: u64, until: u64| {
        let inside = |time: &&u64| (from * MS..until * MS).contains(*time);
        bed.times().iter().filter(inside).count()
    };
    assert!(within(0, 1000).abs_diff(100) <= 1);
    assert!(within(1000, 2000).abs_diff(200) <= 1);
    assert!(
        within(2000, 3000).abs_diff(150) <= 2,
        "a ramp from 2 to 1 Mbit/s"
    );
    assert!(
        within(3000, 5000).abs_diff(200) <= 1,
        "what was in before the outage goes on"
    );
    assert_eq!(within(5000, 6000), 0);
    let mut bed = Bed::new("delay 1ms at 3s down at 4s up at 5s delay 7ms repeat 10s");
    for s in 0..30 {
        bed.run_until(s * S + S / 2);
        bed.burst(60, s as u32..s as u32 + 1);
        bed.run_out();
        let time = match s % 10 {
            3 => None,
            5.. => Some(s * S + S / 2 + 7 * MS),
            _ => Some(s * S + S / 2 + MS),
        };
        let last = bed
            .out
            .last()
            .filter(|(_, packet)| number(packet) == s as u32);
        assert_eq!(last.map(|(time, _)| *time), time, "{s}");
    }
    assert_eq!(bed.dropped(Reason::Outage), 3);
}
