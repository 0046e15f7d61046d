//! Marking frames with "congestion experienced" instead of dropping them (RFC 3168).

use crate::wire::ethernet::{self, IPV4, IPV6};

/// Marks a frame, given its beginning. `false`, and nothing changed, if its sender does not understand marks.
pub(super) fn mark(frame: &mut [u8]) -> bool {
    let Some(walk) = ethernet::walk(frame) else {
        return false;
    };
    let Some(ip) = frame.get_mut(walk.offset..) else {
        return false;
    };
    match walk.ethertype {
        IPV4 if ip.len() >= 20 && ip[0] >> 4 == 4 => {
            let field = ip[1];
            if field & 3 == 0 {
                return false;
            }
            ip[1] = field | 3;
            // RFC 1624, (3): the checksum follows without the rest of the header.
            let old = u32::from(u16::from_be_bytes([ip[0], field]));
            let new = u32::from(u16::from_be_bytes([ip[0], ip[1]]));
            let sum = u32::from(!u16::from_be_bytes([ip[10], ip[11]])) + (0xffff - old) + new;
            let sum = (sum & 0xffff) + (sum >> 16);
            let sum = (sum & 0xffff) + (sum >> 16);
            ip[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
            true
        }
        IPV6 if ip.len() >= 40 && ip[0] >> 4 == 6 => {
            let marks = ip[1] & 0x30 != 0;
            if marks {
                ip[1] |= 0x30;
            }
            marks
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::checksum::{fold, sum};

    fn ipv4(tos: u8, ttl: u8) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([8, 0, 0x45, tos, 0, 40, 1, 2, 0x40, 0, ttl, 6, 0, 0]);
        frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        let check = !fold(sum(&frame[14..34]));
        frame[24..26].copy_from_slice(&check.to_be_bytes());
        frame.extend([0; 20]);
        frame
    }

    #[test]
    fn marks_keep_the_checksum_right() {
        for tos in 0..=255u8 {
            for ttl in [0, 1, 63, 255] {
                let mut frame = ipv4(tos, ttl);
                let capable = tos & 3 != 0;
                assert_eq!(mark(&mut frame), capable, "{tos}");
                assert_eq!(frame[15], if capable { tos | 3 } else { tos });
                assert_eq!(fold(sum(&frame[14..34])), 0xffff, "{tos} {ttl}");
            }
        }
    }

    #[test]
    fn ipv6_behind_a_tag_is_marked_and_others_are_not() {
        let mut frame = vec![0; 12];
        frame.extend([0x81, 0, 0, 5, 0x86, 0xdd, 0x60, 0x20]);
        frame.extend([0; 38]);
        assert!(mark(&mut frame));
        assert_eq!(frame[18..20], [0x60, 0x30]);
        frame[19] = 0x0f;
        assert!(!mark(&mut frame));
        let mut arp = vec![0; 60];
        arp[12..14].copy_from_slice(&[8, 6]);
        assert!(!mark(&mut arp) && !mark(&mut [1; 5]));
        assert!(!mark(&mut ipv4(1, 1)[..20]));
    }
}
