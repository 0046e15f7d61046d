"""Independent senders and receivers for the tests: nothing but the standard library, nothing shared with the relay.

Each command prints `listening` when a peer may start, and one JSON object as its last line.
"""
import argparse
import errno
import fcntl
import hashlib
import json
import os
import random
import select
import socket
import struct
import sys
import threading
import time

SOL_PACKET, PACKET_VNET_HDR, PACKET_AUXDATA, PACKET_IGNORE_OUTGOING = 263, 15, 8, 23
SOL_UDP, UDP_SEGMENT = 17, 103
SO_RCVBUFFORCE = 33
TUNSETIFF, IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x400454CA, 0x2, 0x1000, 0x4000
VNET_LEN = 10
MAGIC = 0x5AA5
HEAD = struct.Struct("!HHI")  # magic, flow, sequence number within the flow


def say(**result):
    print(json.dumps(result), flush=True)


def family(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


# --- TCP: both ways at once, contents compared by hash -------------------------------------------------------------

def tcp_peer(conn, size, seed):
    conn.settimeout(20)
    data = random.Random(seed).randbytes(size)

    def send():
        conn.sendall(data)
        conn.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send)
    sender.start()
    digest, received = hashlib.sha256(), 0
    while chunk := conn.recv(1 << 18):
        digest.update(chunk)
        received += len(chunk)
    sender.join()
    say(sent=size, sent_sha=hashlib.sha256(data).hexdigest(), received=received, received_sha=digest.hexdigest())


def tcp_serve(o):
    with socket.create_server((o.address, o.port), family=family(o.address)) as server:
        server.settimeout(20)
        print("listening", flush=True)
        tcp_peer(server.accept()[0], o.size, o.seed)


def tcp_connect(o):
    tcp_peer(socket.create_connection((o.address, o.port), timeout=10), o.size, o.seed)


# --- UDP: numbered datagrams of many flows; a window keeps what is under way below every queue's size ----------------

NOISE = random.Random(7).randbytes(1 << 17)


def filler(flow, seq, size):
    """Contents that depend on the flow and the place in it, cheap enough not to slow the sender down."""
    start = (flow * 7919 + seq * 31) % (1 << 16)
    return NOISE[start:start + size]


def udp_send(o):
    """Sends `count` datagrams over `flows` flows: small, large, and (with --gso) super-frames of up to `segments`."""
    rng = random.Random(o.seed)
    acks = socket.socket(family(o.address), socket.SOCK_DGRAM)
    acks.bind(("", o.port + 1))
    flows = []
    for _ in range(o.flows):
        s = socket.socket(family(o.address), socket.SOCK_DGRAM)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        if o.gso:
            s.setsockopt(SOL_UDP, UDP_SEGMENT, o.large)
        s.connect((o.address, o.port))
        flows.append(s)
    seqs = [0] * o.flows
    sent = acked = supers = 0
    deadline = time.monotonic() + o.limit
    while sent < o.count and time.monotonic() < deadline:
        while o.acks and sent - acked >= o.window:
            if not select.select([acks], [], [], max(0, deadline - time.monotonic()))[0]:
                return say(sent=sent, acked=acked, supers=supers, error="no acknowledgement")
            acked = max(acked, struct.unpack("!I", acks.recv(16))[0])
        flow = rng.randrange(o.flows)
        kind = rng.randrange(3 if o.gso else 2)
        sizes = [[rng.randrange(HEAD.size, 200)], [o.large], [o.large] * rng.randrange(1, o.segments) + [o.large // 2]]
        sizes = sizes[kind][: max(1, o.count - sent)]
        message = b""
        for size in sizes:
            message += HEAD.pack(MAGIC, flow, seqs[flow]) + filler(flow, seqs[flow], size - HEAD.size)
            seqs[flow] += 1
        flows[flow].send(message)
        sent += len(sizes)
        supers += len(sizes) > 1
    # The last acknowledgement says that everything arrived; until then the port stays open, or ICMP would answer it.
    while o.acks and acked < sent and select.select([acks], [], [], o.idle)[0]:
        acked = max(acked, struct.unpack("!I", acks.recv(16))[0])
    say(sent=sent, acked=acked, supers=supers)


def udp_receive(o):
    """Checks every datagram's contents and its place in its flow; ends at `count` or when nothing came for `idle` s."""
    s = socket.socket(family(o.address), socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 32 << 20)
    s.bind((o.address, o.port))
    s.settimeout(o.limit)
    print("listening", flush=True)
    next_seq, received, corrupt, reordered, gaps, doubled = {}, 0, 0, 0, 0, 0
    seen = set()
    try:
        while received < o.count:
            data, peer = s.recvfrom(65536)
            s.settimeout(o.idle)
            received += 1
            magic, flow, seq = HEAD.unpack_from(data) if len(data) >= HEAD.size else (0, 0, 0)
            if magic != MAGIC or data[HEAD.size:] != filler(flow, seq, len(data) - HEAD.size):
                corrupt += 1
                continue
            doubled += (flow, seq) in seen
            seen.add((flow, seq))
            expected = next_seq.get(flow, 0)
            if seq < expected:
                reordered += 1
            else:
                gaps += seq - expected
                next_seq[flow] = seq + 1
            if o.acks and (received % 16 == 0 or received == o.count):
                s.sendto(struct.pack("!I", received), (peer[0], o.port + 1))
    except TimeoutError:
        pass
    say(received=received, corrupt=corrupt, reordered=reordered, gaps=gaps, doubled=doubled)


def udp_collect(o):
    """Whatever comes, with its sender, until nothing came for `idle` s."""
    s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 32 << 20)
    s.bind((o.address, o.port))
    s.settimeout(o.limit)
    print("listening", flush=True)
    datagrams = []
    try:
        while True:
            data, peer = s.recvfrom(65536)
            s.settimeout(o.idle)
            datagrams.append((peer[0], peer[1], data.hex()))
    except TimeoutError:
        pass
    say(datagrams=datagrams)


def echo(o):
    """Sends back what comes, until it is ended."""
    s = socket.socket(family(o.address), socket.SOCK_DGRAM)
    s.bind((o.address, o.port))
    print("listening", flush=True)
    while True:
        s.sendto(*s.recvfrom(65536))


def ask(o):
    """`count` questions to an `echo`, one each `pause` s. (ping gives the last answer two round trips, and no more.)"""
    s = socket.socket(family(o.address), socket.SOCK_DGRAM)
    s.connect((o.address, o.port))
    answers = []
    for n in range(o.count):
        s.send(struct.pack("!I", n))
        until = time.monotonic() + o.pause
        while (left := until - time.monotonic()) > 0 and select.select([s], [], [], left)[0]:
            answers.append(s.recv(16))
    while len(answers) < o.count and select.select([s], [], [], o.idle)[0]:
        answers.append(s.recv(16))
    say(sent=o.count, received=len(answers), different=len(set(answers)))


def sink(o):
    """Reads a port and answers nothing, until it is ended: the kernel counts."""
    s = socket.socket(family(o.address), socket.SOCK_DGRAM)
    s.bind((o.address, o.port))
    print("listening", flush=True)
    while True:
        s.recv(65536)


def flood(o):
    """A bounded, counted generator: `count` datagrams as fast as it can, and no more."""
    socks = []
    for _ in range(o.flows):
        s = socket.socket(family(o.address), socket.SOCK_DGRAM)
        s.connect((o.address, o.port))
        socks.append(s)
    payload, sent, failed = bytes(o.size), 0, 0
    print("listening", flush=True)
    for n in range(o.count):
        try:
            socks[n % o.flows].send(payload)
            sent += 1
        except OSError:
            failed += 1
        if o.pause and n % 32 == 31:
            time.sleep(o.pause)
    say(sent=sent, failed=failed)


# --- raw frames: exact bytes in, exact bytes out --------------------------------------------------------------------

def raw_send(o):
    """Sends the hex lines of standard input; with --vnet each begins with a 10-byte virtio header."""
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    if o.vnet:
        s.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    s.bind((o.interface, 0))
    s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    frames = [bytes.fromhex(line.strip()) for line in sys.stdin if line.strip()]
    for n, frame in enumerate(frames):
        s.send(frame)
        if o.pause and n % 32 == 31:
            time.sleep(o.pause)
    say(sent=len(frames))


def raw_receive(o):
    """Prints `virtio-header frame tci tpid` of each incoming frame, the stripped tag from the auxiliary data."""
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    s.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    s.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
    s.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    s.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 32 << 20)
    s.bind((o.interface, 3))
    s.settimeout(o.limit)
    print("listening", flush=True)
    frames = []
    try:
        while len(frames) < o.count:
            data, ancillary, _, _ = s.recvmsg(1 << 17, 256)
            tag = None
            for _, kind, value in ancillary:
                if kind == PACKET_AUXDATA:
                    status, _, _, _, _, tci, tpid = struct.unpack_from("=IIIHHHH", value)
                    if status & 0x10:  # TP_STATUS_VLAN_VALID
                        tag = [tci, tpid if status & 0x40 else 0x8100]
            frames.append({"vnet": data[:VNET_LEN].hex(), "frame": data[VNET_LEN:].hex(), "tag": tag})
    except TimeoutError:
        pass
    say(frames=frames)


def tap(o):
    """A TAP interface; each hex line of standard input is a virtio header and a frame that comes in on it. What goes
    out of it is printed at the end of the input."""
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", o.interface.encode(), IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
    print("listening", flush=True)
    frames, refused, text, more = [], 0, b"", True
    while more or select.select([fd], [], [], o.idle)[0]:
        ready = select.select([fd, 0] if more else [fd], [], [])[0]
        if fd in ready:
            data = os.read(fd, 1 << 17)
            frames.append({"vnet": data[:VNET_LEN].hex(), "frame": data[VNET_LEN:].hex(), "tag": None})
        if 0 in ready:
            chunk = os.read(0, 1 << 20)
            more = bool(chunk)
            *lines, text = (text + chunk).split(b"\n")
            for line in lines:
                try:
                    os.write(fd, bytes.fromhex(line.decode()))
                except OSError as error:  # a header that contradicts itself
                    refused += 1
                    assert error.errno == errno.EINVAL, error
    say(frames=frames, refused=refused)


def tcx(o):
    """Holds a program of its own, which lets everything pass, on tcx ingress of an interface until the input ends: by the system call,
    for no tool of Debian 12 knows tcx."""
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)

    def bpf(command, *parts):
        attr = ctypes.create_string_buffer(b"".join(parts).ljust(128, b"\0"), 128)
        fd = libc.syscall(321 if os.uname().machine == "x86_64" else 280, command, attr, 128)
        if fd < 0:
            raise OSError(ctypes.get_errno(), "bpf")
        return fd

    # r0 = -1 (TCX_NEXT), exit.
    code = ctypes.create_string_buffer(struct.pack("=BBhiBBhi", 0xb7, 0, 0, -1, 0x95, 0, 0, 0))
    licence = ctypes.create_string_buffer(b"GPL")
    address = ctypes.addressof
    program = bpf(5, struct.pack("=IIQQIIQII16s", 3, 2, address(code), address(licence), 0, 0, 0, 0, 0, b"somebody"))
    link = bpf(28, struct.pack("=IIII", program, socket.if_nametoindex(o.interface), 46, 0))
    print("listening", flush=True)
    sys.stdin.read()
    os.close(link)
    say(held=1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("command", choices=["tcp-serve", "tcp-connect", "udp-send", "udp-receive", "udp-collect", "flood",
                                       "raw-send", "raw-receive", "tap", "tcx", "sink", "echo",
                                       "ask"])
    p.add_argument("--address", default="0.0.0.0")
    p.add_argument("--port", type=int, default=5000)
    p.add_argument("--interface")
    p.add_argument("--size", type=int, default=18)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--count", type=int, default=1)
    p.add_argument("--flows", type=int, default=1)
    p.add_argument("--window", type=int, default=128)
    p.add_argument("--large", type=int, default=1400)
    p.add_argument("--segments", type=int, default=20)
    p.add_argument("--pause", type=float, default=0)
    p.add_argument("--limit", type=float, default=15)
    p.add_argument("--idle", type=float, default=1)
    p.add_argument("--gso", action="store_true")
    p.add_argument("--vnet", action="store_true")
    p.add_argument("--no-acks", dest="acks", action="store_false")
    o = p.parse_args()
    if o.command in ("udp-send", "flood", "raw-send"):
        # veth queues on the CPU that sends: a sender that is moved from one to another reorders its own frames.
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    {"tcp-serve": tcp_serve, "tcp-connect": tcp_connect, "udp-send": udp_send, "udp-receive": udp_receive,
     "udp-collect": udp_collect,
     "flood": flood, "raw-send": raw_send, "raw-receive": raw_receive,
     "tap": tap, "tcx": tcx, "sink": sink, "echo": echo, "ask": ask}[o.command](o)


main()
