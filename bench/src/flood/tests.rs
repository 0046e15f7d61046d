//! Real frames between namespaces. They need root.

use std::collections::HashMap;
use std::net::UdpSocket;
use std::time::Duration;

use super::*;
use crate::count::{self, Counter, Verdict};
use crate::run;
use crate::topology::{self, Shape, Topology};

/// Client and server joined directly, the server with NAPI.
fn cable(run: &Run) -> Topology {
    let topology = Topology::build(run, Shape::Direct, false).expect("a topology");
    Program::new("ethtool")
        .args(["-K", topology.server.interface, "gro", "on"])
        .within(&topology.server.namespace)
        .run(run, Duration::from_secs(5))
        .expect("GRO is switched on");
    topology
}

fn spec(run: &Run, topology: &Topology) -> Spec {
    let [client, server] = topology.hosts();
    let mac = |host: &topology::Host| {
        Interface::find(run, &host.namespace, host.interface)
            .expect("the interface is there")
            .mac
    };
    Spec {
        namespace: client.namespace.clone(),
        interface: client.interface.into(),
        ends: Ends {
            addresses: (client.address.into(), server.address.into()),
            ..Ends::between(mac(client), mac(server))
        },
        size: 64,
        flows: 64,
        rate_pps: 10_000,
        cpu: 0,
        batch: 64,
        duration: Duration::from_millis(300),
    }
}

/// Counts datagrams of this payload, and keeps some.
fn counter(run: &Run, topology: &Topology, port: u16, payload: u32) -> Counter {
    let server = &topology.server;
    let spec = count::Spec {
        payload,
        sample_every: 7,
        ..count::Spec::port(port)
    };
    Counter::attach(run, &server.namespace, server.interface, &spec).expect("a counter")
}

#[test]
fn a_socket_gets_every_frame_in_order_and_undamaged() {
    let Some(run) = run::for_test("a_socket_gets_every_frame_in_order_and_undamaged") else {
        return;
    };
    let topology = cable(&run);
    let server = &topology.server;
    let socket = topology::enter(&server.namespace, || {
        UdpSocket::bind((server.address, 9000))
    })
    .expect("the namespace")
    .expect("a socket");
    socket
        .set_read_timeout(Some(Duration::from_millis(200)))
        .expect("a timeout");
    // All of the flood fits, should this thread have to wait for a CPU.
    sys::udp::force_receive_buffer(&socket, 8 << 20).expect("a buffer");
    let spec = Spec {
        flows: 7,
        size: 130,
        ..spec(&run, &topology)
    };
    let flood = Flood::start(&run, &spec).expect("a flood");

    let mut next: HashMap<u32, u64> = HashMap::new();
    let mut buffer = [0; 2048];
    while let Ok((len, from)) = socket.recv_from(&mut buffer) {
        assert_eq!(len, 130 - 42);
        assert_eq!(buffer[..4], frame::MAGIC);
        let flow = u32::from_be_bytes(buffer[4..8].try_into().expect("four bytes"));
        let sequence = u64::from_be_bytes(buffer[8..16].try_into().expect("eight bytes"));
        assert_eq!(u32::from(from.port()), 20000 + flow);
        let expected = next.entry(flow).or_default();
        assert_eq!(sequence, *expected, "flow {flow}");
        *expected += 1;
        assert!(
            (16..len).all(|at| buffer[at] == at as u8),
            "the payload is damaged"
        );
    }
    let sent = flood.stop(&run).expect("it stops");
    // The kernel verifies checksums: what a socket gets was valid.
    let received: Vec<u64> = (0..7)
        .map(|flow| next.get(&flow).copied().unwrap_or(0))
        .collect();
    assert_eq!(received, sent.flows);
    assert_eq!(sent.flows.iter().sum::<u64>(), sent.made);
    assert_eq!(sent.taken, sent.made);
    let wanted = 10_000.0 * 0.3;
    assert!((sent.made as f64) < wanted * 1.02, "{} made", sent.made);
    assert!(sent.made as f64 > wanted * 0.3, "{} made", sent.made);
}

#[test]
fn the_counter_counts_its_ports_and_drops() {
    let Some(run) = run::for_test("the_counter_counts_its_ports_and_drops") else {
        return;
    };
    let topology = cable(&run);
    let (right, wrong) = (
        counter(&run, &topology, 9000, 470),
        counter(&run, &topology, 9001, 0),
    );
    let flood = Flood::start(
        &run,
        &Spec {
            size: 512,
            duration: Duration::from_secs(10),
            ..spec(&run, &topology)
        },
    )
    .expect("a flood");
    // However busy the machine is.
    while flood.made().expect("it tells") < 1000 {
        run.sleep(Duration::from_millis(5))
            .expect("nobody interrupts");
    }
    let sent = flood.stop(&run).expect("it stops");
    run.sleep(Duration::from_millis(20))
        .expect("nobody interrupts");
    let counts = right.read().expect("counts");
    assert!(counts.packets >= 1000);
    assert_eq!((counts.packets, counts.bytes), (sent.made, sent.made * 512));
    assert_eq!((counts.odd, counts.buffers), (0, counts.packets));
    assert_eq!(wrong.read().expect("counts").packets, 0);

    let template = Template::new(&spec(&run, &topology).ends, 512).expect("a template");
    let samples = right.samples().expect("samples");
    assert!(samples.len() as u64 >= (counts.packets / 7 - 1).min(256));
    for sample in samples {
        let flow = u32::from(sample.source) - 20000;
        let number = template.number(&sample.payload, flow, true);
        assert!(number.is_some_and(|number| number < sent.flows[flow as usize]));
    }
}

#[test]
fn segments_of_a_super_frame_count_one_by_one() {
    let Some(run) = run::for_test("segments_of_a_super_frame_count_one_by_one") else {
        return;
    };
    let topology = cable(&run);
    let counter = counter(&run, &topology, 9000, 300);
    let client = &topology.client;
    let to = (topology.server.address, 9000);
    topology::enter(&client.namespace, || -> std::io::Result<()> {
        let socket = UdpSocket::bind((client.address, 0))?;
        // 4 segments of 300 bytes and one of 100.
        crate::sys::udp::segment(&socket, 300)?;
        socket.send_to(&[7; 1300], to)?;
        Ok(())
    })
    .expect("the namespace")
    .expect("a super-frame is sent");
    run.sleep(Duration::from_millis(50))
        .expect("nobody interrupts");
    let counts = counter.read().expect("counts");
    assert_eq!((counts.packets, counts.bytes), (5, 1300 + 5 * 42));
    // The last segment is shorter than was expected.
    assert_eq!((counts.buffers, counts.odd), (1, 5));
}

#[test]
fn a_counter_drops_or_passes_and_is_gone_when_dropped() {
    let Some(run) = run::for_test("a_counter_drops_or_passes_and_is_gone_when_dropped") else {
        return;
    };
    let topology = cable(&run);
    let [client, server] = topology.hosts();
    let socket = |host: &topology::Host, port| {
        topology::enter(&host.namespace, || UdpSocket::bind((host.address, port)))
            .expect("the namespace")
            .expect("a socket")
    };
    let (sender, receiver) = (socket(client, 0), socket(server, 9000));
    receiver
        .set_read_timeout(Some(Duration::from_millis(300)))
        .expect("a timeout");
    let arrives = || {
        sender
            .send_to(b"hello", (server.address, 9000))
            .expect("sent");
        receiver.recv(&mut [0; 16]).is_ok()
    };
    let attach = |verdict| {
        let spec = count::Spec {
            verdict,
            ..count::Spec::port(9000)
        };
        Counter::attach(&run, &server.namespace, server.interface, &spec).expect("a counter")
    };

    let passing = attach(Verdict::Pass);
    assert!(arrives());
    assert_eq!(passing.read().expect("counts").packets, 1);
    drop(passing);
    let dropping = attach(Verdict::Drop);
    assert!(!arrives());
    assert_eq!(dropping.read().expect("counts").packets, 1);
    drop(dropping);
    assert!(arrives());
}

#[test]
fn bad_settings_are_refused() {
    let Some(run) = run::for_test("bad_settings_are_refused") else {
        return;
    };
    let topology = cable(&run);
    let good = spec(&run, &topology);
    let error = |spec: Spec| match Flood::start(&run, &spec) {
        Ok(_) => panic!("started: {spec:?}"),
        Err(error) => format!("{error:#}"),
    };
    assert!(
        error(Spec {
            interface: "nowhere0".into(),
            ..good.clone()
        })
        .contains("nowhere0")
    );
    assert!(
        error(Spec {
            namespace: "no-such".into(),
            ..good.clone()
        })
        .contains("no-such")
    );
    assert!(
        error(Spec {
            batch: 0,
            ..good.clone()
        })
        .contains("batch 0")
    );
    assert!(
        error(Spec {
            flows: 0,
            ..good.clone()
        })
        .contains("0 flows")
    );
    assert!(
        error(Spec {
            size: 20,
            ..good.clone()
        })
        .contains("size 20")
    );
    assert!(error(Spec { cpu: 1000, ..good }).contains("CPU 1000"));
}

#[test]
fn waiting_is_a_share_of_time() {
    assert_eq!(waited("300 100 7\n"), Some(0.25));
    assert_eq!(waited("0 0 0\n"), None);
    assert_eq!(waited(""), None);
}
