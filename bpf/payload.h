// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Where the payload of a UDP datagram begins: shared by the programs that look at datagrams on tcx.
#ifndef PAYLOAD_H
#define PAYLOAD_H

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

// Offset of the payload, 0 if the frame is no whole datagram to one of the ports from `first` to `last`. `source` gets its source port.
static __always_inline __u32 payload_at(struct __sk_buff *skb, __u16 first, __u16 last, __u16 *source)
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
	if (port < first || port > last)
		return 0;
	*source = bpf_ntohs(udp.source);
	return udp_at + sizeof(udp);
}

#endif
