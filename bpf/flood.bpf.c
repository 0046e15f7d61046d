// SPDX-License-Identifier: MIT OR Apache-2.0
//
// The flood generator: makes one UDP frame a run and sends it out of an interface.
//
// Run by BPF_PROG_TEST_RUN with BPF_F_TEST_XDP_LIVE_FRAMES and one huge repeat count (bench/src/flood/), never attached to anything.
// The kernel keeps a pool of pages that hold the template frame and runs this program on one after another, in batches with bottom
// halves off. A page comes back with whatever its last reader left in it, so every byte up to the payload is written anew.
//
// Pacing is by dropping: a run that comes before the next frame is due gives its page back at once. So the run never stops (stopping
// and starting one costs some 20 ms) and softirqs run between the batches. When the deadline is over every run drops; the caller ends
// the run by a signal.
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

// Times are in nanoseconds of bpf_ktime_get_ns, the _fp ones in 1/256 ns, so that 3 Mpps are met within 10 parts per million.
#define FRACTION_BITS 8
// Without a rate the clock is read once in so many frames.
#define CLOCK_EVERY 64

#define IPV4_UDP (sizeof(struct ethhdr) + sizeof(struct iphdr))
#define IPV6_UDP (sizeof(struct ethhdr) + sizeof(struct ipv6hdr))

// What follows the UDP header in every frame, in network byte order.
struct mark {
	__be32 magic; // part of the template
	__be32 flow;
	__be64 sequence; // of this flow, from 0
} __attribute__((packed));

// Written by user space, mirrored in bench/src/flood/layout.rs.
struct config {
	__u64 gap_fp; // between two frames; 0: as fast as possible
	__u64 debt_fp; // lateness that is made up for; what is beyond it is given up
	__u64 deadline_ns; // no frame is made from then on
	__u32 ifindex; // leaves here, in the namespace of the caller
	__u32 flows; // source ports first_port .. first_port + flows
	__u32 sum; // one's complement sum that the UDP checksum covers, less what varies
	__u16 first_port;
	__u16 ipv6; // 0 or 1
	__u8 head[80]; // the template's first bytes, up to and with the magic number
};

// Written here, read by user space.
struct state {
	__u64 next_fp; // when the next frame is due
	__u64 made; // frames handed to the interface
	__u64 first_ns; // when the first was made
	__u64 last_ns; // when the clock was last read for a frame
	__u64 given_up_fp; // lateness beyond the debt, in all
	__u32 flow; // of the next frame
	__u32 unused;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct config);
} config SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct state);
} state SEC(".maps");

// Frames made of each flow. User space sets the size before loading.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} made SEC(".maps");

// Whether a frame is due; keeps the time of the next one.
static __always_inline int due(const struct config *c, struct state *s)
{
	__u64 now, now_fp;

	if (!c->gap_fp && s->made % CLOCK_EVERY)
		return 1;
	now = bpf_ktime_get_ns();
	if (now >= c->deadline_ns)
		return 0;
	if (c->gap_fp) {
		now_fp = now << FRACTION_BITS;
		if (!s->next_fp)
			s->next_fp = now_fp;
		if (now_fp < s->next_fp)
			return 0;
		if (now_fp - s->next_fp > c->debt_fp) {
			s->given_up_fp += now_fp - s->next_fp - c->debt_fp;
			s->next_fp = now_fp - c->debt_fp;
		}
		s->next_fp += c->gap_fp;
	}
	if (!s->first_ns)
		s->first_ns = now;
	s->last_ns = now;
	return 1;
}

// Makes frame `sequence` of `flow` in the page. `udp_at` is a constant where this is called.
static __always_inline int fill(struct xdp_md *ctx, const struct config *c, __u32 flow, __u64 sequence, const __u32 udp_at)
{
	const __u32 head = udp_at + sizeof(struct udphdr) + sizeof(__be32);
	__u8 *data = (void *)(long)ctx->data;
	__u8 *end = (void *)(long)ctx->data_end;
	struct udphdr *udp = (void *)(data + udp_at);
	struct mark *mark = (void *)(udp + 1);
	__be64 wire_sequence = bpf_cpu_to_be64(sequence);
	__be32 wire_flow = bpf_htonl(flow);
	__be16 port = bpf_htons(c->first_port + flow);
	__u32 sum = c->sum;

	if ((void *)(mark + 1) > (void *)end)
		return 0;
	__builtin_memcpy(data, c->head, head);
	udp->source = port;
	mark->flow = wire_flow;
	mark->sequence = wire_sequence;

	sum += port;
	sum += (wire_flow & 0xffff) + (wire_flow >> 16);
	sum += (wire_sequence & 0xffff) + (wire_sequence >> 16 & 0xffff) + (wire_sequence >> 32 & 0xffff) + (wire_sequence >> 48);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = ~sum & 0xffff;
	udp->check = sum ? sum : 0xffff; // zero would say that there is no checksum
	return 1;
}

SEC("xdp")
int flood(struct xdp_md *ctx)
{
	__u32 zero = 0, flow;
	struct config *c = bpf_map_lookup_elem(&config, &zero);
	struct state *s = bpf_map_lookup_elem(&state, &zero);
	__u64 *count;

	if (!c || !s || !due(c, s))
		return XDP_DROP;
	flow = s->flow;
	count = bpf_map_lookup_elem(&made, &flow);
	if (!count)
		return XDP_DROP;
	if (!(c->ipv6 ? fill(ctx, c, flow, *count, IPV6_UDP) : fill(ctx, c, flow, *count, IPV4_UDP)))
		return XDP_DROP;
	*count += 1;
	s->made += 1;
	s->flow = flow + 1 < c->flows ? flow + 1 : 0;
	// XDP_TX would do the same, but the kernel then wants an XDP receive queue on the interface itself, which a veth without an XDP
	// program has not.
	return bpf_redirect(c->ifindex, 0);
}

char LICENSE[] SEC("license") = "MIT OR Apache-2.0";
