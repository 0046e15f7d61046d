//! What the machine allows: rights, memory, CPUs.

use std::fs;
use std::io;

use super::{Findings, quota, size};
use crate::interface::Interface;
use crate::port::packet::{self, ENOUGH_BUFFER, SOCKET_BUFFER};
use crate::rights::{Rights, capability};
use crate::sys::{packet::PacketSocket, release};

pub(super) fn examine(findings: &mut Findings) {
    let rights = Rights::own();
    let socket = PacketSocket::open(0);
    kernel(findings, &release::name());
    packet_socket(findings, &rights, socket.as_ref().err());
    if let Ok(obtained) = socket.and_then(|socket| socket.receive_buffer(SOCKET_BUFFER)) {
        receive_buffer(
            findings,
            &rights,
            obtained,
            read("/proc/sys/net/core/rmem_max").trim(),
        );
    }
    other_namespaces(findings, &rights);
    let limits = read("/proc/self/limits");
    for_xdp(findings, &rights, locked_memory(&limits));
    for_kernel(findings, &rights);
    findings.ok("sandbox", rights.sandbox());
    huge_pages(findings, &page_pools());
    cpus(findings, &rights.cpus);
    cpu_quota(findings, quota::quota());
    interfaces(findings);
}

/// Empty if it can't be read: then the finding says that it isn't known, or is left out.
fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn kernel(findings: &mut Findings, release: &str) {
    let text = format!("{release} {}", std::env::consts::ARCH);
    let older = |than| release::parse(release).is_some_and(|version| version < than);
    if older((4, 20)) {
        let text = text + ": a packet socket receives what the host itself sends, too";
        findings.note(
            "kernel",
            text,
            "use Linux 4.20 or later (PACKET_IGNORE_OUTGOING)",
        );
    } else if older(packet::UDP_SUPER_FRAMES) {
        let text = text + ": packet sockets carry no UDP super-frames, so datagrams are not merged";
        findings.note(
            "kernel",
            text,
            "use Linux 6.2 or later, and below it ethtool -K INTERFACE tx-udp-segmentation off at hosts that send such (QUIC)",
        );
    } else {
        findings.ok("kernel", text);
    }
}

/// A capability may be there and the socket refused all the same, so what counts is the attempt.
fn packet_socket(findings: &mut Findings, rights: &Rights, refusal: Option<&io::Error>) {
    let Some(error) = refusal else {
        return findings.ok("packet socket", "may be opened (CAP_NET_RAW)");
    };
    if error.kind() != io::ErrorKind::PermissionDenied {
        let text = format!("cannot be opened: {error}");
        return findings.problem(
            "packet socket",
            text,
            "use a kernel with AF_PACKET (CONFIG_PACKET)",
        );
    }
    if rights.has(capability::NET_RAW) {
        let text = format!("refused in spite of CAP_NET_RAW: {error}");
        let remedy =
            "allow socket(AF_PACKET) in the seccomp profile or security module of the container";
        return findings.problem("packet socket", text, remedy);
    }
    let setcap = if rights.no_new_privileges {
        ""
    } else {
        ", or setcap cap_net_raw+ep on the program"
    };
    let remedy = format!("run as root, or docker run --cap-add NET_RAW{setcap}");
    findings.problem(
        "packet socket",
        "may not be opened: CAP_NET_RAW is missing",
        remedy,
    );
}

fn receive_buffer(findings: &mut Findings, rights: &Rights, obtained: usize, rmem_max: &str) {
    let admin = if rights.has(capability::NET_ADMIN) {
        ""
    } else {
        " without CAP_NET_ADMIN"
    };
    // Older kernels show it in the initial network namespace only.
    let limit = if rmem_max.is_empty() {
        String::new()
    } else {
        format!(" (net.core.rmem_max is {rmem_max})")
    };
    let text = format!("{} obtained{admin}{limit}", size(obtained as u64));
    if obtained >= ENOUGH_BUFFER {
        findings.ok("receive buffer", text);
    } else {
        let text = text + ": few, large ring slots instead of many small ones, so TCP is slower";
        let remedy = format!(
            "docker run --cap-add NET_ADMIN, or on the host: sysctl -w net.core.rmem_max={SOCKET_BUFFER}"
        );
        findings.note("receive buffer", text, remedy);
    }
}

fn other_namespaces(findings: &mut Findings, rights: &Rights) {
    if rights.has(capability::SYS_ADMIN) {
        findings.ok(
            "namespaces",
            "ports in other namespaces may be opened (CAP_SYS_ADMIN)",
        );
    } else {
        findings.note(
            "namespaces",
            "ports as NAMESPACE:INTERFACE may not be opened: CAP_SYS_ADMIN is missing",
            "only for such ports: docker run --cap-add SYS_ADMIN, or start the relay in the namespace itself",
        );
    }
}

/// What AF_XDP locks for a pair, about.
const LOCKED_FOR_A_PAIR: u64 = 22 << 20;

fn for_xdp(findings: &mut Findings, rights: &Rights, locked_memory: Option<&str>) {
    let mut needed = vec![
        (capability::NET_RAW, "NET_RAW"),
        (capability::BPF, "BPF"),
        (capability::NET_ADMIN, "NET_ADMIN"),
    ];
    let limit = locked_memory.and_then(|limit| limit.parse::<u64>().ok());
    let little = limit.filter(|bytes| *bytes < LOCKED_FOR_A_PAIR);
    if little.is_some() {
        needed.push((capability::IPC_LOCK, "IPC_LOCK"));
    }
    let missing = rights.missing(&needed);
    let locked = little
        .filter(|_| missing.contains(&"IPC_LOCK"))
        .map(|bytes| {
            let (bytes, pair) = (size(bytes), size(LOCKED_FOR_A_PAIR));
            format!("; only {bytes} may be locked, a pair takes {pair}")
        });
    back_end(
        findings,
        ("for AF_XDP", "--backend xdp"),
        &missing,
        &locked.unwrap_or_default(),
    );
}

fn for_kernel(findings: &mut Findings, rights: &Rights) {
    let mut missing = rights.missing(&[
        (capability::BPF, "BPF"),
        (capability::NET_ADMIN, "NET_ADMIN"),
        (capability::NET_RAW, "NET_RAW"),
    ]);
    if missing == ["NET_RAW"] {
        let more = ", which only promiscuous mode and captures need (--no-promisc)";
        return back_end(findings, ("for kernel", "--backend kernel"), &missing, more);
    }
    let more = rights.missing(&[(capability::PERFMON, "PERFMON")]);
    let hook = match (&missing[..], &more[..]) {
        (_, []) => "",
        ([], _) => ", which only --kernel-hook xdp needs",
        _ => ", the last for --kernel-hook xdp only",
    };
    missing.extend(more);
    back_end(findings, ("for kernel", "--backend kernel"), &missing, hook);
}

/// Whether the rights of a back end that need not be used are there.
fn back_end(
    findings: &mut Findings,
    (item, option): (&'static str, &str),
    missing: &[&str],
    more: &str,
) {
    if missing.is_empty() {
        return findings.ok(item, "the rights are there (packet needs none of them)");
    }
    let (names, verb) = (
        missing.join(", CAP_"),
        if missing.len() == 1 { "is" } else { "are" },
    );
    let add: Vec<String> = missing
        .iter()
        .map(|right| format!("--cap-add {right}"))
        .collect();
    let instead = match missing.contains(&"BPF") || missing.contains(&"PERFMON") {
        true => " (SYS_ADMIN where the engine does not know BPF)",
        false => "",
    };
    findings.note(
        item,
        format!("CAP_{names} {verb} missing{more} (packet needs none of them)"),
        format!(
            "only for {option}: run as root, or docker run {}{instead}",
            add.join(" ")
        ),
    );
}

/// The soft limit, in bytes or `unlimited`.
fn locked_memory(limits: &str) -> Option<&str> {
    limits
        .lines()
        .find_map(|line| line.strip_prefix("Max locked memory"))?
        .split_whitespace()
        .next()
}

/// Huge pages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PagePool {
    page_kib: u64,
    total: u64,
    /// Neither in use nor promised.
    free: u64,
}

fn page_pools() -> Vec<PagePool> {
    let entries = fs::read_dir("/sys/kernel/mm/hugepages")
        .into_iter()
        .flatten()
        .flatten();
    let pools = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let page_kib = name
            .strip_prefix("hugepages-")?
            .strip_suffix("kB")?
            .parse()
            .ok()?;
        let number = |file: &str| {
            fs::read_to_string(entry.path().join(file))
                .ok()?
                .trim()
                .parse::<u64>()
                .ok()
        };
        let free = number("free_hugepages")?.saturating_sub(number("resv_hugepages")?);
        Some(PagePool {
            page_kib,
            total: number("nr_hugepages")?,
            free,
        })
    });
    let mut pools: Vec<_> = pools.collect();
    pools.sort_by_key(|pool| pool.page_kib);
    pools
}

fn huge_pages(findings: &mut Findings, pools: &[PagePool]) {
    let Some(smallest) = pools.first() else {
        let text = "this kernel shows none: frames lie on ordinary pages";
        return findings.note(
            "huge pages",
            text,
            "none needed; --hugepages off says that this is as wanted",
        );
    };
    let list: Vec<String> = pools
        .iter()
        .map(|pool| {
            format!(
                "{} of {} free of {}",
                pool.free,
                pool.total,
                size(pool.page_kib << 10)
            )
        })
        .collect();
    if smallest.free > 0 {
        findings.ok("huge pages", list.join(", "));
    } else {
        let text = format!("{}: frames lie on ordinary pages", list.join(", "));
        let path = format!(
            "/sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages",
            smallest.page_kib
        );
        findings.note(
            "huge pages",
            text,
            format!("echo {} > {path}", smallest.total + 64),
        );
    }
}

fn cpus(findings: &mut Findings, list: &str) {
    if !list.is_empty() && list.bytes().all(|byte| byte.is_ascii_digit()) {
        findings.note(
            "cpus",
            format!("only {list}: a worker that spins takes it from all else"),
            "--idle adaptive or sleep, or allow more: docker run --cpuset-cpus, taskset",
        );
    } else {
        findings.ok("cpus", format!("{list} allowed"));
    }
}

fn cpu_quota(findings: &mut Findings, quota: Option<quota::Quota>) {
    let Some(quota) = quota else {
        return findings.ok("cpu quota", "none");
    };
    let text = format!(
        "{:.2} CPUs ({} us in each {} us): once they are used up, workers stand still until the next period",
        quota.cpus(),
        quota.quota_us,
        quota.period_us,
    );
    findings.note(
        "cpu quota",
        text,
        "--idle adaptive or sleep, or raise it: docker run --cpus, cpu.max",
    );
}

fn interfaces(findings: &mut Findings) {
    match Interface::list() {
        Ok(interfaces) => {
            let names: Vec<_> = interfaces
                .iter()
                .filter(|one| !one.loopback)
                .map(|one| one.name.as_str())
                .collect();
            let names = if names.is_empty() {
                "none but the loopback".into()
            } else {
                names.join(", ")
            };
            findings.ok("interfaces", names);
        }
        Err(error) => findings.problem(
            "interfaces",
            format!("cannot be listed: {error}"),
            "allow socket(AF_NETLINK) in the seccomp profile or security module of the container",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Finding, Verdict};
    use super::*;

    fn finding(examine: impl FnOnce(&mut Findings)) -> Finding {
        let mut findings = Findings::about("machine");
        examine(&mut findings);
        assert_eq!(findings.all.len(), 1);
        findings.all.remove(0)
    }

    fn with(capabilities: &[u32]) -> Rights {
        let effective = capabilities
            .iter()
            .fold(0, |mask, capability| mask | 1 << capability);
        Rights {
            effective,
            ..Rights::default()
        }
    }

    #[test]
    fn a_refused_socket_is_a_problem_with_its_cause() {
        let refused = io::Error::from_raw_os_error(libc::EPERM);
        let missing = finding(|findings| packet_socket(findings, &with(&[]), Some(&refused)));
        assert_eq!(missing.verdict, Verdict::Problem);
        assert!(missing.text.contains("CAP_NET_RAW is missing"));
        assert!(missing.remedy.unwrap().contains("setcap"));
        let no_setcap = Rights {
            no_new_privileges: true,
            ..Rights::default()
        };
        let missing = finding(|findings| packet_socket(findings, &no_setcap, Some(&refused)));
        assert!(!missing.remedy.unwrap().contains("setcap"));

        let rights = with(&[capability::NET_RAW]);
        let sandboxed = finding(|findings| packet_socket(findings, &rights, Some(&refused)));
        assert!(sandboxed.text.contains("in spite of"));
        let unknown = io::Error::from_raw_os_error(libc::EAFNOSUPPORT);
        let unknown = finding(|findings| packet_socket(findings, &rights, Some(&unknown)));
        assert!(unknown.remedy.unwrap().contains("CONFIG_PACKET"));
        assert_eq!(
            finding(|findings| packet_socket(findings, &rights, None)).verdict,
            Verdict::Ok
        );
    }

    #[test]
    fn a_small_receive_buffer_is_noted() {
        let small = finding(|findings| receive_buffer(findings, &with(&[]), 425_984, "212992"));
        assert_eq!(small.verdict, Verdict::Note);
        assert!(
            small
                .text
                .starts_with("416 KiB obtained without CAP_NET_ADMIN"),
            "{}",
            small.text
        );
        let large = finding(|findings| {
            receive_buffer(
                findings,
                &with(&[capability::NET_ADMIN]),
                32 << 20,
                "212992",
            )
        });
        assert_eq!(large.verdict, Verdict::Ok);
    }

    #[test]
    fn old_kernels_are_noted() {
        let verdict = |release| finding(|findings| kernel(findings, release)).verdict;
        assert_eq!(verdict("4.19.0-27-amd64"), Verdict::Note);
        assert_eq!(verdict("4.20"), Verdict::Note);
        assert_eq!(verdict("6.1.0-rc1+"), Verdict::Note);
        assert_eq!(verdict("6.2.0-rc1+"), Verdict::Ok);
        assert_eq!(verdict("strange"), Verdict::Ok);
    }

    #[test]
    fn limits_are_read() {
        let limits = "Max file size  unlimited  unlimited  bytes\nMax locked memory   8388608    8388608    bytes \n";
        assert_eq!(locked_memory(limits), Some("8388608"));
        assert_eq!(locked_memory(""), None);
    }

    #[test]
    fn rights_of_other_back_ends_are_named() {
        use capability::{BPF, IPC_LOCK, NET_ADMIN, NET_RAW, PERFMON, SYS_ADMIN};
        let xdp = |rights: &[u32], limit| finding(|all| for_xdp(all, &with(rights), limit));
        let little = Some("8388608");
        let none = xdp(&[], little);
        assert_eq!(none.verdict, Verdict::Note);
        assert!(
            none.text.starts_with(
                "CAP_NET_RAW, CAP_BPF, CAP_NET_ADMIN, CAP_IPC_LOCK are missing; only 8 MiB"
            ),
            "{}",
            none.text
        );
        let remedy = none.remedy.unwrap();
        assert!(
            remedy.contains("--cap-add BPF --cap-add NET_ADMIN --cap-add IPC_LOCK"),
            "{remedy}"
        );
        for (rights, limit) in [
            (&[NET_RAW, BPF, NET_ADMIN, IPC_LOCK][..], little),
            (&[NET_RAW, SYS_ADMIN, IPC_LOCK], little),
            (&[NET_RAW, BPF, NET_ADMIN], Some("unlimited")),
            (&[NET_RAW, BPF, NET_ADMIN], None),
        ] {
            assert_eq!(xdp(rights, limit).verdict, Verdict::Ok, "{rights:?}");
        }
        let one = xdp(&[NET_RAW, BPF, NET_ADMIN], little);
        assert!(
            one.text.starts_with("CAP_IPC_LOCK is missing"),
            "{}",
            one.text
        );

        let kernel = |rights: &[u32]| finding(|all| for_kernel(all, &with(rights)));
        for rights in [
            &[BPF, NET_ADMIN, NET_RAW, PERFMON][..],
            &[SYS_ADMIN, NET_RAW],
        ] {
            assert_eq!(kernel(rights).verdict, Verdict::Ok, "{rights:?}");
        }
        for (rights, text) in [
            (
                &[][..],
                "CAP_BPF, CAP_NET_ADMIN, CAP_NET_RAW, CAP_PERFMON are missing",
            ),
            (&[BPF, NET_RAW, PERFMON], "CAP_NET_ADMIN is missing ("),
            (
                &[BPF, NET_RAW, NET_ADMIN],
                "CAP_PERFMON is missing, which only --kernel-hook xdp",
            ),
            (
                &[SYS_ADMIN],
                "CAP_NET_RAW is missing, which only promiscuous",
            ),
        ] {
            let found = kernel(rights);
            assert_eq!(found.verdict, Verdict::Note);
            assert!(found.text.starts_with(text), "{}", found.text);
        }
    }

    #[test]
    fn huge_pages_are_told_by_size() {
        let pools = [(2048, 64, 10), (1 << 20, 0, 0)];
        let pools = pools.map(|(page_kib, total, free)| PagePool {
            page_kib,
            total,
            free,
        });
        let some = finding(|findings| huge_pages(findings, &pools));
        assert_eq!(some.text, "10 of 64 free of 2 MiB, 0 of 0 free of 1 GiB");
        assert_eq!(some.verdict, Verdict::Ok);
        let none = finding(|findings| {
            huge_pages(
                findings,
                &[PagePool {
                    free: 0,
                    ..pools[0]
                }],
            )
        });
        assert_eq!(
            none.remedy.unwrap(),
            "echo 128 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
        );
        assert_eq!(
            finding(|findings| huge_pages(findings, &[])).verdict,
            Verdict::Note
        );
    }

    #[test]
    fn few_cpus_are_noted() {
        assert_eq!(
            finding(|findings| cpus(findings, "3")).verdict,
            Verdict::Note
        );
        assert_eq!(
            finding(|findings| cpus(findings, "0-1")).verdict,
            Verdict::Ok
        );
        let half = quota::Quota {
            quota_us: 50_000,
            period_us: 100_000,
        };
        assert!(
            finding(|findings| cpu_quota(findings, Some(half)))
                .text
                .starts_with("0.50 CPUs")
        );
        assert_eq!(
            finding(|findings| cpu_quota(findings, None)).verdict,
            Verdict::Ok
        );
    }
}
