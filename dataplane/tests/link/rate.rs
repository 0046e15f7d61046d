//! Rates, queues, traces and slots.

use super::*;

#[test]
fn frames_leave_one_after_another_at_the_rate() {
    // 1250 bytes at 1 Mbit/s take 10 ms; counted otherwise, otherwise.
    for (words, len, each_ns) in [
        ("rate 1mbit", 1250, 10 * MS),
        ("rate 1mbit l3", 1250 + 14, 10 * MS),
        ("rate 1mbit wire", 1250 - 24, 10 * MS),
        ("rate 1mbit wire", 20, 84 * 8000),
        ("rate 1mbit overhead 50", 1200, 10 * MS),
        ("rate 1mbit cell 53", 48 * 2 + 1, 3 * 53 * 8000),
    ] {
        let mut bed = Bed::new(&format!("{words} limit 100p"));
        bed.burst(len, 0..10);
        bed.run_out();
        let wanted: Vec<u64> = (1..=10).map(|n| n * each_ns).collect();
        assert_eq!(bed.times(), wanted, "{words}");
        assert_eq!(bed.numbers(), (0..10).collect::<Vec<_>>());
    }
}

/// A wire that was idle sends at its own speed; a token bucket would send at once.
#[test]
fn a_single_frame_after_idle_takes_its_time() {
    let mut bed = Bed::new("rate 2mbit delay 100ms");
    for n in 1..=3 {
        bed.run_until(n * 10 * S);
        bed.burst(1500, 0..1);
        bed.run_out();
        assert_eq!(bed.times().pop(), Some(n * 10 * S + 6 * MS + 100 * MS));
    }
}

/// Parts of a nanosecond add up to nothing over time, and late turns change no time.
#[test]
fn the_rate_is_exact_over_time() {
    let mut bed = Bed::new("rate 7777777bit limit 100000p");
    bed.burst(1001, 0..10_000);
    bed.run_out();
    let exact = 10_000.0 * 1001.0 * 8.0 / 7_777_777.0 * 1e9;
    let found = *bed.times().last().unwrap() as f64;
    assert!((found - exact).abs() < 2.0, "{found} {exact}");

    // Looked at only every 7 ms: each frame is late by less than that, and the last as much as any.
    let mut bed = Bed::new("rate 1mbit delay 30ms limit 1000p");
    bed.burst(125, 0..500);
    for n in 1..=100 {
        bed.run_until(n * 7 * MS);
    }
    for (n, time) in bed.times().into_iter().enumerate() {
        let due = (n as u64 + 1) * MS + 30 * MS;
        assert!((due..due + 7 * MS).contains(&time), "{n}: {time}");
    }
    assert_eq!(bed.out.len(), 500);
}

#[test]
fn a_burst_of_k_into_a_limit_of_q_loses_k_minus_q() {
    for (limit, len, q) in [
        ("50p", 1000, 50u64),
        ("1p", 1000, 1),
        ("50000b", 1000, 50),
        ("50999b", 1000, 50),
        // At 8 Mbit/s a frame of 1000 bytes takes 1 ms: one that would wait longer than 20 ms is dropped.
        ("20ms", 1000, 21),
        ("64kb", 1514, 43),
    ] {
        for k in [q - 1, q, q + 1, 3 * q] {
            let mut bed = Bed::new(&format!("rate 8mbit limit {limit}"));
            bed.burst(len, 0..k as u32);
            let lost = k.saturating_sub(q);
            assert_eq!(bed.dropped(Reason::QueueFull), lost, "{limit} {k}");
            assert_eq!(bed.tally().held, k - lost);
            assert_eq!(bed.link.snapshot().queue_packets, k - lost);
            bed.run_out();
            let survivors: Vec<u32> = (0..(k - lost) as u32).collect();
            assert_eq!(bed.numbers(), survivors, "{limit} {k}: the tail is lost");
        }
        // From the head: what is being sent stays, then the last q − 1 are left.
        let mut bed = Bed::new(&format!("rate 8mbit limit {limit} drophead"));
        let k = 3 * q;
        bed.burst(len, 0..k as u32);
        bed.run_out();
        if q == 1 {
            assert_eq!(bed.numbers(), [0]);
        } else {
            let last = (k - q + 1) as u32..k as u32;
            let survivors: Vec<u32> = std::iter::once(0).chain(last).collect();
            assert_eq!(bed.numbers(), survivors, "{limit}");
        }
        assert_eq!(bed.dropped(Reason::QueueFull), k - q, "{limit}");
    }
}

/// Without a limit 100 ms wait, and never fewer than ten frames of full size: at 64 kbit/s TCP would starve with one.
#[test]
fn the_default_limit_leaves_room_for_a_window() {
    for (rate, len, held) in [
        ("64kbit", 1514, 11),
        ("100bit", 1514, 11),
        ("64kbit wire", 1514, 11),
        // A frame on the wire, and those that wait 100 ms at most behind it.
        ("12112kbit", 1514, 101),
        ("8mbit", 1000, 101),
    ] {
        let mut bed = Bed::new(&format!("rate {rate}"));
        bed.burst(len, 0..200);
        assert_eq!(bed.tally().held, held, "{rate}");
        assert_eq!(bed.dropped(Reason::QueueFull), 200 - held);
    }
    // What is asked for holds as it is.
    let mut bed = Bed::new("rate 64kbit limit 100ms");
    bed.burst(1514, 0..200);
    assert_eq!(bed.tally().held, 1);
}

/// In the default order what is lost has used the line; the other way round it has not.
#[test]
fn the_order_of_effects_is_that_given() {
    let after = |words: &str| {
        let mut bed = Bed::new(&format!("rate 1mbit limit 1000p loss pattern 10 {words}"));
        bed.burst(1250, 0..100);
        bed.run_out();
        assert_eq!(bed.dropped(Reason::Lost), 50);
        *bed.times().last().unwrap()
    };
    assert_eq!(after(""), 100 * 10 * MS);
    assert_eq!(after("order loss,rate"), 50 * 10 * MS);
    // A duplicate made before the rate costs as much as the first.
    let mut bed = Bed::new("rate 1mbit limit 1000p duplicate 100% order duplicate");
    bed.burst(1250, 0..10);
    bed.run_out();
    assert_eq!(*bed.times().last().unwrap(), 200 * MS);
    assert_eq!(bed.tally().created, 10);
}

fn trace(name: &str, text: &str) -> String {
    let path = std::env::temp_dir().join(format!("l2relay-{}-{name}", std::process::id()));
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// mahimahi: an opportunity is good for 1500 bytes of packet; frames share it and span several; unused it is lost.
#[test]
fn traces_are_mahimahis() {
    let path = trace("trace", "2\n2\n5\n10\n");
    let mut bed = Bed::new(&format!("trace {path}"));
    bed.burst(1500 + 14, 0..3);
    bed.burst(500 + 14, 3..6);
    bed.burst(3000 + 14, 6..7);
    bed.run_out();
    let wanted = [2, 2, 5, 10, 10, 10, 12].map(|ms| ms * MS);
    assert_eq!(bed.times(), wanted);
    // Two opportunities were at 12 ms; the first served half of the last frame, the second the rest.
    bed.run_until(14 * MS);
    bed.burst(1514, 7..8);
    bed.run_out();
    assert_eq!(bed.times().pop(), Some(15 * MS));

    let mut bed = Bed::new(&format!("trace {path} once limit 3p"));
    bed.burst(1514, 0..9);
    bed.run_until(S);
    assert_eq!(bed.numbers(), [0, 1, 2]);
    bed.burst(1514, 9..20);
    bed.run_until(2 * S);
    assert_eq!(
        (bed.out.len(), bed.tally().held),
        (3, 3),
        "a trace that is over sends nothing"
    );
    std::fs::remove_file(path).unwrap();

    // "1" alone is 12 Mbit/s.
    let path = trace("one", "1\n");
    let mut bed = Bed::new(&format!("trace {path} limit 10000p"));
    bed.burst(1514, 0..1000);
    bed.run_out();
    assert_eq!(*bed.times().last().unwrap(), S);
    std::fs::remove_file(path).unwrap();
}

/// A trace that stays goes on where it is when something else changes; another begins at its beginning.
#[test]
fn a_trace_goes_on_through_a_change() {
    let path = trace("on", "10\n20\n100\n");
    let mut bed = Bed::new(&format!("trace {path}"));
    bed.burst(1514, 0..4);
    bed.run_until(15 * MS);
    bed.set(&format!("trace {path} loss 0% limit 50p"));
    bed.run_out();
    assert_eq!(bed.times(), [10, 20, 100, 110].map(|ms| ms * MS));
    bed.run_until(115 * MS);
    let other = trace("other", "10\n");
    bed.set(&format!("trace {other}"));
    bed.burst(1514, 4..5);
    bed.run_out();
    assert_eq!(bed.times().pop(), Some(125 * MS));
    for path in [path, other] {
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn slots_deliver_together() {
    let mut bed = Bed::new("slot 10ms packets 4");
    bed.burst(100, 0..10);
    bed.run_out();
    let wanted: Vec<u64> = [[10; 4].as_slice(), &[20; 4], &[30; 2]].concat();
    assert_eq!(
        bed.times(),
        wanted.iter().map(|ms| ms * MS).collect::<Vec<_>>()
    );
    // Between two times: never outside, and everywhere inside.
    let mut bed = Bed::new("slot 1ms 3ms seed 4");
    let mut waits = Vec::new();
    for n in 1..=400 {
        bed.run_until(n * 10 * MS);
        bed.burst(100, 0..2);
        bed.run_out();
        let [.., a, b] = bed.times()[..] else {
            panic!()
        };
        assert_eq!(a, b);
        waits.push(a - n * 10 * MS);
    }
    assert!(waits.iter().all(|wait| (MS..=3 * MS).contains(wait)));
    let mean = waits.iter().sum::<u64>() / 400;
    assert!(mean.abs_diff(2 * MS) < 150_000, "{mean}");
    // By bytes.
    let mut bed = Bed::new("slot 10ms bytes 250");
    bed.burst(100, 0..5);
    bed.run_out();
    assert_eq!(bed.times(), [10, 10, 20, 20, 30].map(|ms| ms * MS));
}
