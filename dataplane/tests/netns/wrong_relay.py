#!/usr/bin/python3
"""A slow relay that is right, or, with WRONG=<fault>, wrong in one way: what the tests are tested with (see sceptic.rs).

It takes the arguments of `l2relay run` that the tests use, is ready when it says so, and prints the same JSON.
"""
import errno
import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
import time

WRONG = os.environ.get("WRONG", "")
SOL_PACKET, ADD_MEMBERSHIP, STATISTICS, AUXDATA, VNET_HDR, IGNORE_OUTGOING = 263, 1, 6, 8, 15, 23
VLAN_VALID, SIOCGIFHWADDR = 0x10, 0x8927


class Port:
    def __init__(self, name, number, promiscuous):
        self.name, self.number, self.drops = name, number, 0
        self.rx, self.tx = (socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) for _ in range(2))
        for s in (self.rx, self.tx):
            if WRONG != "no virtio header":
                s.setsockopt(SOL_PACKET, VNET_HDR, 1)
            s.setsockopt(socket.SOL_SOCKET, 32, 16 << 20)
            s.setsockopt(socket.SOL_SOCKET, 33, 1 << 20)
        if WRONG != "hears itself":
            self.rx.setsockopt(SOL_PACKET, IGNORE_OUTGOING, 1)
        self.rx.setsockopt(SOL_PACKET, AUXDATA, 1)
        self.rx.bind((name, 3))
        self.tx.bind((name, 0))
        if promiscuous:
            self.rx.setsockopt(SOL_PACKET, ADD_MEMBERSHIP, struct.pack("iHH8x", socket.if_nametoindex(name), 1, 0))
        self.mac = fcntl.ioctl(self.rx, SIOCGIFHWADDR, struct.pack("256s", name.encode()))[18:24]

    def close(self):
        """Takes nothing new: bound to a protocol that no frame has."""
        self.rx.bind((self.name, 0x88FF))

    def kernel_drops(self):
        self.drops += struct.unpack("II", self.rx.getsockopt(SOL_PACKET, STATISTICS, 8))[1]
        return 0 if WRONG == "hides kernel drops" else self.drops


def fold(data):
    """The sum of the Internet checksum."""
    words = sum(struct.unpack(f"!{len(data) // 2}H", data[: len(data) & ~1])) + (data[-1] << 8 if len(data) & 1 else 0)
    while words >> 16:
        words = (words & 0xFFFF) + (words >> 16)
    return words


class Datagram:
    """One that can be merged, and those that were merged behind it."""

    def __init__(self, header, data, ip, udp):
        self.header, self.data, self.ip, self.udp = header, data, ip, udp
        self.size, self.count, self.payload = len(data) - udp - 8, 1, data[udp + 8:]
        self.six = data[ip] >> 4 == 6
        addresses = data[ip + 8:ip + 40] if self.six else data[ip + 12:ip + 20]
        self.addresses, self.flow = addresses, addresses + data[udp:udp + 4]
        # What all must have in common; without DF also an identification that counts on.
        self.manner = data[:ip + 4 if self.six else ip + 2] + data[ip + 6:ip + 10]
        self.id = None if self.six or data[ip + 6] & 0x40 else struct.unpack_from("!H", data, ip + 4)[0]

    @staticmethod
    def read(header, data):
        at = 12
        while data[at:at + 2] in (b"\x81\x00", b"\x88\xa8"):
            at += 4
        ip, four, six = at + 2, data[at:at + 2] == b"\x08\x00", data[at:at + 2] == b"\x86\xdd"
        if header[1] or header[0] & 1 or len(data) < ip + 28 or not (four or six):
            return None
        if four and (data[ip] != 0x45 or data[ip + 9] != 17 or data[ip + 6] & 0x3F or data[ip + 7] or fold(data[ip:ip + 20]) != 0xFFFF):
            return None
        if six and data[ip + 6] != 17:
            return None
        one = Datagram(header, data, ip, ip + (20 if four else 40))
        length, checksum = struct.unpack_from("!HH", data, one.udp + 4)
        if length != len(data) - one.udp or not checksum or one.size == 0:
            return None
        right = fold(one.pseudo(length) + data[one.udp:]) == 0xFFFF
        return one if right or WRONG == "merges over bad checksums" else None

    def pseudo(self, length):
        return self.addresses + struct.pack("!HH", 17, length)

    def joins(self, first):
        counts = self.id is None or self.id == (first.id + first.count) % 65536 if first.id is not None else True
        whole = len(first.payload) == first.count * first.size
        return self.manner == first.manner and counts and whole and self.size <= first.size and first.count < 64 and len(first.payload) < 40000

    def whole(self):
        """The frame to send, with its virtio header."""
        if self.count == 1:
            return self.header, self.data
        data, length = bytearray(self.data[:self.udp + 8]), len(self.payload) + 8
        if self.six:
            struct.pack_into("!H", data, self.ip + 4, length)
        else:
            struct.pack_into("!H", data, self.ip + 2, length + 20)
            struct.pack_into("!H", data, self.ip + 10, 0)
            struct.pack_into("!H", data, self.ip + 10, 0xFFFF - fold(bytes(data[self.ip:self.udp])))
        struct.pack_into("!HH", data, self.udp + 4, length, fold(self.pseudo(length)))
        size = self.size + (WRONG == "merges into other lengths")
        return struct.pack("<BBHHHH", 1, 5, self.udp + 8, size, self.udp, 6), bytes(data) + self.payload


class Lane:
    def __init__(self, a, b, options):
        self.a, self.b, self.options = a, b, options
        self.count = dict(rx_packets=0, rx_bytes=0, tx_packets=0, tx_bytes=0)
        self.dropped, self.frames, self.waiting, self.late = {}, 0, None, []
        self.groups, self.merged = {}, dict(merged_packets=0, super_frames=0)

    def drop(self, reason, packets):
        self.dropped[reason] = self.dropped.get(reason, 0) + packets

    def turn(self):
        for _ in range(512 if self.options["merges"] else 64):
            try:
                data, ancillary, _, _ = self.a.rx.recvmsg(1 << 17, 256, socket.MSG_DONTWAIT)
            except OSError:
                break
            self.process(data, ancillary)
        self.flush()
        for frame in self.late:
            self.send(*frame)
        self.late = []

    def merge(self, header, data, packets):
        """Behind what can't be merged, everything begins anew: that keeps the order."""
        one = Datagram.read(header, data)
        if one is None:
            if WRONG != "merges and overtakes":
                self.flush()
            return self.send(header, data, packets)
        first = self.groups.get(one.flow)
        if first and one.joins(first):
            first.count, first.payload = first.count + 1, first.payload + one.payload
            return None
        if first:
            self.flush()
        self.groups[one.flow] = one
        return None

    def flush(self):
        for group in self.groups.values():
            if group.count > 1:
                self.merged["merged_packets"] += group.count
                self.merged["super_frames"] += 1
            self.send(*group.whole(), group.count)
        self.groups = {}

    def process(self, data, ancillary):
        header = bytes(10)
        if WRONG != "no virtio header":
            header, data = data[:10], data[10:]
        if WRONG == "empty virtio header":
            header = bytes(10)
        self.frames += 1
        status, _, _, _, _, tci, tpid = struct.unpack_from("=IIIHHHH", ancillary[0][2])
        if status & VLAN_VALID and WRONG != "loses tags" and not (WRONG == "loses zero tags" and tci == 0):
            tpid = 0x8100 if WRONG == "one tag protocol" else tpid
            tci &= 0xFFF if WRONG == "loses priorities" else 0xFFFF
            data = data[:12] + struct.pack("!HH", tpid, tci) + data[12:]
            if WRONG != "forgets the tag's length":
                length, size, start, offset = struct.unpack("<HHHH", header[2:])
                length, start = length + 4 * bool(header[1]), start + 4 * (header[0] & 1)
                header = header[:2] + struct.pack("<HHHH", length, size, start, offset)
        packets = self.segments(header, data)
        self.count["rx_packets"] += packets
        self.count["rx_bytes"] += len(data)
        hairpin = self.a is self.b or WRONG == "guards pairs"
        if self.options["guard"] and hairpin and data[0] & 1 and WRONG != "no guard":
            return self.drop("filtered", packets)
        data = self.edit(data)
        if WRONG == "cuts" and not header[1]:
            data = data[:1514]
        if WRONG == "pads":
            data = data.ljust(60, b"\0")
        if WRONG == "flips a bit" and self.frames % 300 == 0:
            data = data[:-1] + bytes([data[-1] ^ 1])
        if WRONG == "loses" and self.frames % 300 == 0:
            self.count["tx_packets"] += packets
            self.count["tx_bytes"] += len(data)
            return None
        if WRONG == "doubles" and self.frames % 200 == 0:
            self.b.tx.send(header + data)
        if WRONG == "reorders" and self.frames % 100 == 0 and not self.waiting:
            self.waiting = header, data, packets
            return None
        if WRONG == "two paths" and header[1]:
            return self.late.append((header, data, packets))
        if self.options["merges"]:
            return self.merge(header, data, packets)
        self.send(header, data, packets)
        if self.waiting:
            self.send(*self.waiting)
            self.waiting = None
        return None

    @staticmethod
    def segments(header, data):
        length, size, start, _ = struct.unpack("<HHHH", header[2:])
        if not header[1] or WRONG == "counts buffers":
            return 1
        headers = start + (8 if header[1] == 5 else (data[start + 12] >> 4) * 4)
        return max(1, -(-(len(data) - headers) // size))

    def edit(self, data):
        if self.options["mac"] == "swap":
            return data[6:12] + data[:6] + data[12:]
        if self.options["mac"] == "update":
            number = self.a.number if WRONG == "numbers the rx port" else self.b.number
            to = self.options["dst"].get(self.b.name, bytes([2, 0, 0, 0, 0, number]))
            if WRONG == "one destination" and self.options["dst"]:
                to = next(iter(self.options["dst"].values()))
            return to + (self.a if WRONG == "source of the rx port" else self.b).mac + data[12:]
        return data

    def send(self, header, data, packets):
        try:
            self.b.tx.send(data if WRONG == "no virtio header" else header + data)
        except OSError as error:
            if WRONG == "stalls" and error.errno == errno.EMSGSIZE:
                time.sleep(1000)
            return self.drop({errno.EMSGSIZE: "oversize", errno.ENETDOWN: "link_down"}.get(error.errno, "tx_full"), packets)
        self.count["tx_packets"] += packets
        self.count["tx_bytes"] += len(data)
        return None


def parse(words):
    options = dict(pairs=[], merges=False, guard=False, mac="keep", dst={}, promiscuous=True)
    words = iter(words)
    for word in words:
        if word == "--pair":
            options["pairs"].append(next(words).split(","))
        elif word == "--hairpin":
            options["pairs"].append([next(words)] * 2)
        elif word == "--mac":
            options["mac"] = next(words)
        elif word == "--dst-mac":
            port, mac = next(words).split("=")
            options["dst"][port] = bytes.fromhex(mac.replace(":", ""))
        elif word == "--hairpin-guard":
            options["guard"] = True
        elif word == "--coalesce":
            options["merges"] = next(words) == "on"
        elif word == "--no-promisc":
            options["promiscuous"] = False
        elif word not in ("run", "--json"):
            next(words)
    return options


def main():
    options = parse(sys.argv[1:])
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    ports, lanes, start = {}, [], time.time()
    for name in [name for pair in options["pairs"] for name in pair]:
        if name not in ports:
            ports[name] = Port(name, len(ports), options["promiscuous"])
    for a, b in options["pairs"]:
        lanes += [Lane(ports[a], ports[b], options)] + [Lane(ports[b], ports[a], options)] * (a != b)

    def snapshot(last):
        def total(port, side, what):
            return sum(lane.count[what] for lane in lanes if getattr(lane, side) is port)
        def port_part(port):
            sides = dict(rx_packets="a", rx_bytes="a", tx_packets="b", tx_bytes="b")
            counts = {what: total(port, side, what) for what, side in sides.items()}
            return dict(counts, name=port.name, kernel_drops=port.kernel_drops(), device_drops=0, state="up")
        def lane_part(lane):
            return dict(lane.count, name=f"{lane.a.name}>{lane.b.name}", rx=lane.a.name, tx=lane.b.name, created=0, **lane.merged, held=0,
                        dropped=lane.dropped, rates=dict(rx_pps=0, rx_bps=0, tx_pps=0, tx_bps=0))
        print(json.dumps(dict(version=1, time_s=time.time(), uptime_s=time.time() - start, last=last,
                              ports=[port_part(p) for p in ports.values()], lanes=[lane_part(l) for l in lanes])), flush=True)

    arrived, (reader, writer) = [], os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for number in (signal.SIGUSR1, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: arrived.append(number))
    poll = select.poll()
    for source in [reader] + [port.rx for port in ports.values()]:
        poll.register(source, select.POLLIN)
    print("ready", file=sys.stderr, flush=True)
    while True:
        if reader in [source for source, _ in poll.poll()]:
            os.read(reader, 64)
        signals = [arrived.pop(0) for _ in range(len(arrived))]
        stop = any(number != signal.SIGUSR1 for number in signals)
        if stop and WRONG != "leaves a backlog":
            for port in ports.values():
                port.close()
        more = not (stop and WRONG == "leaves a backlog")
        while more:
            seen = sum(lane.frames for lane in lanes)
            for lane in lanes:
                lane.turn()
            # At the end, all that has come; else one turn, for poll comes back at once if there is more.
            more = stop and sum(lane.frames for lane in lanes) > seen
        for number in signals:
            if number == signal.SIGUSR1 or WRONG != "no last snapshot":
                snapshot(number != signal.SIGUSR1)
            if number != signal.SIGUSR1:
                break
        if stop:
            sys.exit(WRONG == "fails at the end")


main()
