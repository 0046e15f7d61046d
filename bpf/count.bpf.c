// SPDX-License-Identifier: MIT OR Apache-2.0
//
// The receiver-side counter: counts the datagrams of a flood where they are delivered, and looks at some of them.
//
// Attached by a tcx link to the ingress of the receiving interface (bench/src/count.rs), so it goes when its owner does. Datagrams
// are counted, not socket buffers: a GSO super-frame counts its segments, and the bytes it would have on the wire.
#include "payload.h"

// Longest payload of a sample, and how many samples there is room for.
#define SAMPLE_MAX 1536
#define SAMPLES 256

// Written by user space, mirrored in bench/src/count.rs.
struct config {
	__u16 first_port; // UDP destination ports counted, both included
	__u16 last_port;
	__u8 drop; // 1: what is counted goes no further
	__u8 gaps; // 1: keep the longest time between two arrivals
	__u8 unused[2];
	__u32 payload; // bytes that every datagram's payload has; 0: any
	__u32 sample_every; // one datagram of so many socket buffers is kept; 0: none
};

struct count {
	__u64 packets;
	__u64 bytes; // from the Ethernet header on, without the check sequence
	__u64 buffers; // socket buffers: below packets where super-frames arrive
	__u64 longest_gap_ns;
	__u64 odd; // datagrams in buffers whose segments are not of the payload expected
};

struct sample {
	__u32 len; // of the payload
	__u16 source; // UDP source port
	__u16 segment; // which of its super-frame, 0 the first
	__u8 bytes[SAMPLE_MAX];
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

// The last samples: number n is in slot n % SAMPLES.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SAMPLES);
	__type(key, __u32);
	__type(value, struct sample);
} samples SEC(".maps");

// Keeps segment `segment` of a buffer. `number` counts the samples of this CPU; a receiver's interface is served by one.
static __always_inline void keep(struct __sk_buff *skb, __u32 at, __u32 segment, __u16 source, __u64 number)
{
	__u32 slot = number % SAMPLES;
	__u32 from = at + segment * skb->gso_size;
	struct sample *sample = bpf_map_lookup_elem(&samples, &slot);
	__u32 len;

	if (!sample || from >= skb->len)
		return;
	len = skb->len - from;
	if (skb->gso_size && len > skb->gso_size)
		len = skb->gso_size;
	if (len > SAMPLE_MAX)
		len = SAMPLE_MAX;
	if (len < 1 || bpf_skb_load_bytes(skb, from, sample->bytes, len))
		return;
	sample->source = source;
	sample->segment = segment;
	sample->len = len;
}

SEC("tcx/ingress")
int count(struct __sk_buff *skb)
{
	__u32 zero = 0, at, size, segments = 1;
	struct config *c = bpf_map_lookup_elem(&config, &zero);
	struct count *n = bpf_map_lookup_elem(&counts, &zero);
	__u64 *previous;
	__u16 source;

	if (!c || !n)
		return TCX_NEXT;
	at = payload_at(skb, c->first_port, c->last_port, &source);
	if (!at)
		return TCX_NEXT;

	size = skb->len - at;
	if (skb->gso_size) {
		segments = skb->gso_segs;
		// A frame from a socket with a virtio header may not have been divided up yet.
		if (!segments && skb->len > at)
			segments = (skb->len - at + skb->gso_size - 1) / skb->gso_size;
		if (!segments)
			segments = 1;
		size = skb->gso_size;
		// All segments are of one size, the last one too, and there are as many as the buffer says.
		if (c->payload && skb->len - at != (__u64)segments * c->payload)
			size = 0;
	}
	n->packets += segments;
	n->bytes += skb->len + (__u64)(segments - 1) * at;
	n->buffers += 1;
	if (c->payload && size != c->payload)
		n->odd += segments;
	if (c->sample_every && n->buffers % c->sample_every == 0)
		keep(skb, at, n->buffers / c->sample_every % segments, source, n->buffers / c->sample_every);

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
