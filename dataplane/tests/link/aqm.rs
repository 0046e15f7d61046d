//! Queues that drop or mark before they are full.

use super::*;

/// An ECN-capable IPv4 frame of UDP, numbered like the others.
fn ect(number: u32) -> Packet {
    let mut bytes = numbered(1250, number);
    bytes[12..14].copy_from_slice(&[8, 0]);
    let (front, number) = (bytes[..14].to_vec(), number.to_be_bytes());
    let builder = etherparse::PacketBuilder::ip(etherparse::IpHeaders::Ipv4(
        etherparse::Ipv4Header {
            dscp: etherparse::IpDscp::ZERO,
            ecn: etherparse::IpEcn::try_new(2).unwrap(),
            ..etherparse::Ipv4Header::new(
                0,
                64,
                etherparse::IpNumber::UDP,
                [10, 0, 0, 1],
                [10, 0, 0, 2],
            )
            .unwrap()
        },
        etherparse::Ipv4Extensions::default(),
    ))
    .udp(1, 2);
    let mut payload = vec![0; 1250 - 14 - 28];
    payload[..4].copy_from_slice(&number);
    let mut out = front;
    builder.write(&mut out, &payload).unwrap();
    Packet::new(&out)
}

/// Twice what the line carries (1 Mbit/s), for `seconds`; gives the waiting times of the last half, in ms.
fn overload(bed: &mut Bed, seconds: u64, make: fn(u32) -> Packet) -> Vec<f64> {
    let count = (seconds * 200) as u32;
    let mut sent = Vec::new();
    for n in 0..count {
        bed.run_until(u64::from(n) * 5 * MS);
        bed.send(make(n));
        sent.push(bed.now_ns);
    }
    bed.run_out();
    let mut at = 0;
    let mut waits = Vec::new();
    for (time, packet) in &bed.out {
        // In order: the next one sent that has these bytes, apart from a mark.
        while make(at).bytes[34..] != packet.bytes[34..] {
            at += 1;
        }
        if at > count / 2 {
            waits.push((time - sent[at as usize]) as f64 / 1e6);
        }
        at += 1;
    }
    waits
}

fn plain(number: u32) -> Packet {
    let mut bytes = numbered(1250, number);
    bytes[40..44].copy_from_slice(&number.to_be_bytes());
    Packet::new(&bytes)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[test]
fn pie_holds_its_target_against_whatever_comes() {
    let mut bed = Bed::new("rate 1mbit limit 1000p pie target 50ms seed 1");
    let found = mean(&overload(&mut bed, 30, plain));
    assert!((30.0..90.0).contains(&found), "{found}");
    assert!(bed.dropped(Reason::EarlyDrop) > 2000 && bed.dropped(Reason::QueueFull) == 0);
    // Without it the queue would be as long as it may.
    let mut bed = Bed::new("rate 1mbit limit 1000p");
    let found = mean(&overload(&mut bed, 30, plain));
    assert!(found > 4000.0, "{found}");
}

#[test]
fn red_holds_the_average_between_its_thresholds() {
    let mut bed =
        Bed::new("rate 1mbit limit 1000p red min 10p max 30p probability 10% weight 5% seed 1");
    let waits = overload(&mut bed, 30, plain);
    // Half must be dropped: between probability 10 % (30 frames) and 100 % (60), and a frame takes 10 ms.
    let found = mean(&waits);
    assert!((300.0..600.0).contains(&found), "{found}");
    // Below the lower threshold it drops nothing.
    let mut bed = Bed::new("rate 1mbit limit 1000p red min 10p max 30p");
    for n in 0..500 {
        bed.run_until(n * 20 * MS);
        bed.burst(1250, 0..2);
    }
    bed.run_out();
    assert_eq!(bed.tally().dropped_total(), 0);
}

/// RFC 8289: the first drop after an interval above the target, then ever faster, by 1/√n.
#[test]
fn codel_follows_its_control_law() {
    let mut bed = Bed::new("rate 1mbit limit 10000p codel target 5ms interval 100ms");
    let (mut drops, mut before) = (Vec::new(), 0);
    for n in 0..600u32 {
        bed.run_until(u64::from(n) * 5 * MS);
        bed.send(plain(n));
        let dropped = bed.dropped(Reason::EarlyDrop);
        drops.extend((before..dropped).map(|_| bed.now_ns as f64 / 1e6));
        before = dropped;
    }
    assert!((100.0..140.0).contains(&drops[0]), "{drops:?}");
    for (n, pair) in drops.windows(2).take(12).enumerate() {
        let wanted = 100.0 / ((n + 1) as f64).sqrt();
        // A drop can only be when a frame begins to be sent: every 10 ms.
        assert!((pair[1] - pair[0] - wanted).abs() <= 16.0, "{n}: {drops:?}");
    }
    let whole = drops[12] - drops[0];
    let wanted: f64 = (1..=12).map(|n| 100.0 / f64::from(n).sqrt()).sum();
    assert!((whole - wanted).abs() < 20.0, "{whole} {wanted}");
}

/// What a discipline has learned survives a change of something else: the same frames are dropped as without it.
#[test]
fn a_change_elsewhere_teaches_a_discipline_nothing() {
    for words in [
        "rate 1mbit limit 1000p pie target 50ms seed 1",
        "rate 1mbit limit 1000p codel seed 1",
        "rate 1mbit limit 1000p red min 10p max 30p weight 5% seed 1",
    ] {
        let run = |change: Option<&str>| {
            let mut bed = Bed::new(words);
            for n in 0..4000u32 {
                if n == 2000
                    && let Some(change) = change
                {
                    bed.set(change);
                }
                bed.run_until(u64::from(n) * 5 * MS);
                bed.send(plain(n));
            }
            bed.run_out();
            bed.numbers()
        };
        let whole = run(None);
        assert_eq!(run(Some(&format!("{words} loss 0%"))), whole, "{words}");
        let other = format!("{words} loss 0% order loss").replace("1000p", "1001p");
        assert_eq!(run(Some(&other)), whole, "{words}");
        let another = words
            .replace("pie target 50ms", "pie target 40ms")
            .replace("codel", "codel target 6ms")
            .replace("max 30p", "max 29p");
        assert_ne!(run(Some(&another)), whole, "{another}");
    }
}

#[test]
fn marks_take_the_place_of_drops() {
    for words in [
        "rate 1mbit limit 1000p codel ecn",
        "rate 1900kbit limit 1000p pie target 50ms ecn seed 1",
        "rate 1mbit limit 1000p red min 10p max 500p probability 50% weight 5% ecn seed 1",
        "loss 5% ecn seed 1",
    ] {
        let mut bed = Bed::new(words);
        overload(&mut bed, 20, ect);
        let marked = bed.link.snapshot().marked;
        assert!(marked > 0, "{words}");
        let ce = bed
            .out
            .iter()
            .filter(|(_, packet)| packet.bytes[15] & 3 == 3)
            .count();
        assert_eq!(ce as u64, marked, "{words}");
        for (_, packet) in &bed.out {
            let slice = etherparse::Ipv4HeaderSlice::from_slice(&packet.bytes[14..]).unwrap();
            let header = slice.to_header();
            assert_eq!(
                header.header_checksum,
                header.calc_header_checksum(),
                "{words}"
            );
        }
        // Those who can't be marked are dropped.
        let mut bed = Bed::new(words);
        overload(&mut bed, 20, plain);
        assert_eq!(bed.link.snapshot().marked, 0);
        assert!(
            bed.dropped(Reason::EarlyDrop) + bed.dropped(Reason::Lost) > 0,
            "{words}"
        );
    }
}
