//! Is there a way from client to server? Asked before each measurement, with the bench's own sockets.
//!
//! The probe also fills the neighbour tables, so that no measurement begins with ARP.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::{Place, Protocol};
use crate::process::{Process, Program};
use crate::run::{POLL, Run};
use crate::topology::{Host, enter};

/// How long a probe tries. Two links delayed by half a second still answer in time.
const LIMIT: Duration = Duration::from_secs(3);

/// How often a datagram is sent again.
const REPEAT: Duration = Duration::from_millis(50);

/// How long a server may take until it listens.
const LISTEN: Duration = Duration::from_secs(5);

/// Sends something there and back; `None` if it came, otherwise why there is no connection.
pub(crate) fn connect(place: &Place<'_>, protocol: Protocol) -> Result<Option<String>> {
    let connected = match protocol {
        Protocol::Udp => udp(place)?,
        Protocol::Tcp => tcp(place)?,
    };
    if connected {
        return Ok(None);
    }
    let ping = if ping(place)? {
        "though ping is answered: does the relay lose the offloaded checksums?"
    } else {
        "nor is ping answered"
    };
    Ok(Some(format!(
        "no {protocol} answer within {} s, {ping}",
        LIMIT.as_secs()
    )))
}

/// One ICMP echo; true if it is answered.
pub(crate) fn ping(place: &Place<'_>) -> Result<bool> {
    let server = place.topology.server.address.to_string();
    let output = Program::new("ping")
        .args(["-c", "1", "-W", "2", &server])
        .on(&place.topology.client)
        .finish(place.run, Duration::from_secs(5))?;
    Ok(output.status.success())
}

fn udp(place: &Place<'_>) -> Result<bool> {
    let bind = |host: &Host| -> Result<UdpSocket> {
        let address = SocketAddr::from((host.address, 0));
        let socket = enter(&host.namespace, || UdpSocket::bind(address))?
            .with_context(|| format!("binding {address}"))?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    let (client, server) = (bind(&place.topology.client)?, bind(&place.topology.server)?);
    let to = server.local_addr()?;
    let end = Instant::now() + LIMIT;
    let mut sent: Option<Instant> = None;
    let mut datagram = [0; 64];
    while Instant::now() < end {
        place.run.check()?;
        if sent.is_none_or(|at| at.elapsed() >= REPEAT) {
            // Fails while the neighbour is unknown; it is tried again.
            let _ = client.send_to(b"l2relay-bench", to);
            sent = Some(Instant::now());
        }
        if let Ok((length, from)) = server.recv_from(&mut datagram) {
            let _ = server.send_to(&datagram[..length], from);
        }
        if client.recv_from(&mut datagram).is_ok() {
            return Ok(true);
        }
        std::thread::sleep(POLL / 5);
    }
    Ok(false)
}

fn tcp(place: &Place<'_>) -> Result<bool> {
    let (client, server) = (&place.topology.client, &place.topology.server);
    let address = SocketAddr::from((server.address, 0));
    let listener = enter(&server.namespace, || TcpListener::bind(address))?
        .with_context(|| format!("listening on {address}"))?;
    let to = listener.local_addr()?;
    let stream = enter(&client.namespace, || TcpStream::connect_timeout(&to, LIMIT))?;
    place.run.check()?;
    let mut stream = match stream {
        Ok(stream) => stream,
        Err(e) if is_silence(e.kind()) => return Ok(false),
        Err(e) => bail!("connecting to {to}: {e}"),
    };
    stream.write_all(b"?")?;
    listener.set_nonblocking(true)?;
    let end = Instant::now() + LIMIT;
    let mut accepted = loop {
        // The client is connected before the server is: its last acknowledgement is on its way.
        match listener.accept() {
            Ok((accepted, _)) => break accepted,
            Err(_) if Instant::now() >= end => return Ok(false),
            Err(_) => place.run.sleep(POLL)?,
        }
    };
    accepted.set_nonblocking(false)?;
    accepted.set_read_timeout(Some(LIMIT))?;
    match accepted.read_exact(&mut [0]) {
        Ok(()) => Ok(true),
        Err(e) if is_silence(e.kind()) => Ok(false),
        Err(e) => bail!("reading the probe: {e}"),
    }
}

fn is_silence(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::TimedOut
            | ErrorKind::WouldBlock
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
    )
}

/// Waits until a server listens on `port`. What it prints does not help: into a pipe, late.
pub(crate) fn wait_listening(
    run: &Run,
    server: &mut Process,
    protocol: Protocol,
    port: u16,
) -> Result<()> {
    let tables = match protocol {
        Protocol::Udp => ["udp", "udp6"],
        Protocol::Tcp => ["tcp", "tcp6"],
    };
    let what = format!("it listened on port {port}");
    server.wait_until(run, LISTEN, &what, |server| {
        // The tables of the namespace that the process is in, once it has left the bench's.
        server.is_itself()
            && tables.iter().any(|table| {
                std::fs::read_to_string(format!("/proc/{}/net/{table}", server.network_pid()))
                    .is_ok_and(|table| listens(&table, protocol, port))
            })
    })
}

/// Looks for a bound socket in the text of /proc/net/{udp,tcp}*.
fn listens(table: &str, protocol: Protocol, port: u16) -> bool {
    // States of include/net/tcp_states.h: 0A is TCP_LISTEN; an unconnected UDP socket is TCP_CLOSE, 07.
    let state = match protocol {
        Protocol::Udp => "07",
        Protocol::Tcp => "0A",
    };
    table.lines().skip(1).any(|line| {
        let mut words = line.split_whitespace().skip(1);
        let local = words.next().and_then(|l| l.rsplit_once(':'));
        local.is_some_and(|(_, p)| u16::from_str_radix(p, 16) == Ok(port))
            && words.nth(1) == Some(state)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listening_port_is_found() {
        let table = "  sl  local_address rem_address   st tx_queue\n\
                     0: C800000A:2B67 00000000:0000 0A 00000000:00000000 00:00000000 00000000\n\
                     1: C800000A:1451 6400000A:E2EC 01 00000000:00000000 00:00000000 00000000\n";
        assert!(listens(table, Protocol::Tcp, 11111));
        assert!(!listens(table, Protocol::Tcp, 5201), "it is connected");
        assert!(!listens(table, Protocol::Udp, 11111));
        assert!(!listens(table, Protocol::Tcp, 1));
    }
}
