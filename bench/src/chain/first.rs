//! How long it takes from a relay's start to the first frame that crosses it.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::process::Program;
use crate::rivals::Running;
use crate::run::Run;
use crate::topology::{Host, Topology, enter};

/// A datagram is sent this often.
const EVERY: Duration = Duration::from_millis(1);

/// How long after the relay has said that it forwards one is waited for.
const PATIENCE: Duration = Duration::from_secs(2);

/// Time limit of a set-up command.
const SETUP: Duration = Duration::from_secs(10);

/// Starts a relay while datagrams are sent towards it; also gives when the first came out at the server.
pub(super) fn frame(
    run: &Run,
    topology: &Topology,
    start: impl FnOnce() -> Result<Running>,
) -> Result<(Running, Option<Duration>)> {
    let (client, server) = (&topology.client, &topology.server);
    // Known beforehand: a question that is lost would be asked again only after a second.
    neighbour(run, client, server, "replace")?;
    let bind = |host: &Host| enter(&host.namespace, || UdpSocket::bind((host.address, 0)));
    let (from, to) = (bind(client)??, bind(server)??);
    to.set_nonblocking(true)
        .context("a socket that does not block")?;
    let address = to.local_addr().context("the server's address")?;
    let enough = AtomicBool::new(false);
    let begun = Instant::now();
    let (relay, first) = std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut datagram = [0; 16];
            while !enough.load(Ordering::Relaxed) {
                // There is no carrier perhaps, as long as the relay isn't there.
                let _ = from.send_to(b"first", address);
                if to.recv(&mut datagram).is_ok() {
                    return Some(begun.elapsed());
                }
                std::thread::sleep(EVERY);
            }
            None
        });
        let relay = start();
        let end = Instant::now() + PATIENCE;
        while relay.is_ok() && !sender.is_finished() && Instant::now() < end {
            std::thread::sleep(EVERY);
        }
        enough.store(true, Ordering::Relaxed);
        (relay, sender.join().ok().flatten())
    });
    neighbour(run, client, server, "delete")?;
    Ok((relay?, first))
}

/// Has the client know the server's hardware address, or forget it.
fn neighbour(run: &Run, client: &Host, server: &Host, what: &str) -> Result<()> {
    let mac = Program::new("ip")
        .args([
            "-n",
            &server.namespace,
            "-o",
            "link",
            "show",
            "dev",
            server.interface,
        ])
        .run(run, SETUP)?;
    let mac = mac
        .stdout
        .split_whitespace()
        .skip_while(|word| *word != "link/ether")
        .nth(1)
        .map(str::to_owned);
    let mac = mac.with_context(|| format!("the hardware address of {}", server.interface))?;
    Program::new("ip")
        .args([
            "-n",
            &client.namespace,
            "neighbour",
            what,
            &server.address.to_string(),
            "lladdr",
            &mac,
        ])
        .args(["dev", client.interface])
        .run(run, SETUP)?;
    Ok(())
}
