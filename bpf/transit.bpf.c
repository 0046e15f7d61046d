// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Transit time of a datagram: from the sender's interface to the receiver's, sockets and programs of both left out.
//
// One program on the tcx egress of the sender's interface, one on the tcx ingress of the receiver's, held by links
// (bench/src/transit.rs). A datagram is known again by the first eight bytes of its payload, which must differ from datagram to datagram,
// as the sequence number of sockperf does. So the time is that of the frame itself, whatever is lost or overtaken.
#include "payload.h"

#define SLOTS 65536
#define BUCKETS 65536
// Width of a bucket. The last one also holds all that took longer.
#define BUCKET_NS 50

// Written by user space, mirrored in bench/src/transit.rs.
struct config {
	__u16 port; // UDP destination port
	__u16 unused[3];
};

struct stamp {
	__u64 mark; // what the payload begins with
	__u64 ns;
};

// Read by user space.
struct times {
	__u64 stamped; // datagrams that left
	__u64 arrived; // and came
	__u64 unknown; // came, and have no stamp
	__u64 buckets[BUCKETS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct config);
} config SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SLOTS);
	__type(key, __u32);
	__type(value, struct stamp);
} stamps SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct times);
} times SEC(".maps");

// The slot of the datagram's stamp, and its mark; nothing if it is none of ours.
static __always_inline struct stamp *slot(struct __sk_buff *skb, __u64 *mark)
{
	__u32 zero = 0, at, key;
	struct config *c = bpf_map_lookup_elem(&config, &zero);
	__u16 source;

	if (!c)
		return NULL;
	at = payload_at(skb, c->port, c->port, &source);
	if (!at || bpf_skb_load_bytes(skb, at, mark, sizeof(*mark)))
		return NULL;
	// What varies fastest is at one end of the word or, in network order (with its bytes turned), at the other.
	key = (*mark ^ bpf_be64_to_cpu(*mark)) % SLOTS;
	return bpf_map_lookup_elem(&stamps, &key);
}

SEC("tcx/egress")
int leave(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct times *t = bpf_map_lookup_elem(&times, &zero);
	__u64 mark;
	struct stamp *stamp = slot(skb, &mark);

	if (!stamp || !t)
		return TCX_NEXT;
	t->stamped += 1;
	stamp->mark = mark;
	stamp->ns = bpf_ktime_get_ns();
	return TCX_NEXT;
}

SEC("tcx/ingress")
int arrive(struct __sk_buff *skb)
{
	__u64 now = bpf_ktime_get_ns(), mark, bucket;
	__u32 zero = 0;
	struct times *t = bpf_map_lookup_elem(&times, &zero);
	struct stamp *stamp = slot(skb, &mark);

	if (!stamp || !t)
		return TCX_NEXT;
	if (stamp->mark != mark || !stamp->ns || now < stamp->ns) {
		__sync_fetch_and_add(&t->unknown, 1);
		return TCX_NEXT;
	}
	bucket = (now - stamp->ns) / BUCKET_NS;
	if (bucket >= BUCKETS)
		bucket = BUCKETS - 1;
	// A copy of it would be counted apart.
	stamp->ns = 0;
	__sync_fetch_and_add(&t->arrived, 1);
	__sync_fetch_and_add(&t->buckets[bucket], 1);
	return TCX_NEXT;
}

char LICENSE[] SEC("license") = "MIT OR Apache-2.0";
