// SPDX-License-Identifier: MIT OR Apache-2.0
//
// The receiver-side counter: counts the datagrams of a flood where they are delivered.
//
// Attached by a tcx link to the ingress of the receiving interface (bench/src/count.rs), so it goes when its owner does. Datagrams
// are counted, not socket buffers: a GSO super-frame counts its segments, and the bytes it would have on the wire.
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define TCX_NEXT (-1)
#define TCX_DROP 2

// Written by user space, mirrored in bench/src/count.rs.
struct config {
	__u16 first_port; // UDP destination ports counted, both included
	__u16 last_port;
	__u8 drop; // 1: what is counted goes no further
	__u8 gaps; // 1: keep the longest time between two arrivals
	__u8 unused[2];
};

struct count {
	__u64 packets;
	__u64 bytes; // from the Ethernet header on, without the check sequence
	__u64 buffers; // socket buffers: below packets where super-frames arrive
	__u64 longest_gap_ns;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct config);
} config SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct count);
} counts SEC(".maps");

// When the last datagram came, on whichever CPU.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} last SEC(".maps");

// Where the payload of a UDP datagram begins, 0 if the frame is none of those counted.
static __always_inline __u32 payload_at(struct __sk_buff *skb, const struct config *c)
{
	struct udphdr udp;
	__u32 udp_at;
	__u16 port;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
			return 0;
		if (ip.protocol != IPPROTO_UDP || ip.frag_off & bpf_htons(0x3fff))
			return 0;
		udp_at = ETH_HLEN + ip.ihl * 4;
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		__u8 next;

		if (bpf_skb_load_bytes(skb, ETH_HLEN + offsetof(struct ipv6hdr, nexthdr), &next, sizeof(next)))
			return 0;
		if (next != IPPROTO_UDP)
			return 0;
		udp_at = ETH_HLEN + sizeof(struct ipv6hdr);
	} else {
		return 0;
	}
	if (bpf_skb_load_bytes(skb, udp_at, &udp, sizeof(udp)))
		return 0;
	port = bpf_ntohs(udp.dest);
	if (port < c->first_port || port > c->last_port)
		return 0;
	return udp_at + sizeof(udp);
}

SEC("tcx/ingress")
int count(struct __sk_buff *skb)
{
	__u32 zero = 0, at, segments = 1;
	struct config *c = bpf_map_lookup_elem(&config, &zero);
	struct count *n = bpf_map_lookup_elem(&counts, &zero);
	__u64 *previous;

	if (!c || !n)
		return TCX_NEXT;
	at = payload_at(skb, c);
	if (!at)
		return TCX_NEXT;

	if (skb->gso_size) {
		segments = skb->gso_segs;
		// A frame from a socket with a virtio header may not have been divided up yet.
		if (!segments && skb->len > at)
			segments = (skb->len - at + skb->gso_size - 1) / skb->gso_size;
		if (!segments)
			segments = 1;
	}
	n->packets += segments;
	n->bytes += skb->len + (__u64)(segments - 1) * at;
	n->buffers += 1;

	previous = c->gaps ? bpf_map_lookup_elem(&last, &zero) : NULL;
	if (previous) {
		__u64 now = bpf_ktime_get_ns();
		__u64 before = __sync_lock_test_and_set(previous, now);

		if (before && now > before && now - before > n->longest_gap_ns)
			n->longest_gap_ns = now - before;
	}
	return c->drop ? TCX_DROP : TCX_NEXT;
}

char LICENSE[] SEC("license") = "MIT OR Apache-2.0";
