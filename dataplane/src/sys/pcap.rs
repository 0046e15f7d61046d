//! libpcap's compiler for filter expressions, and nothing else of libpcap. Called by the capture client.
//!
//! It is linked statically, so that the program needs no library where it runs (`docs/decisions/0012-pcap-filters.md`).

use std::{
    ffi::{CStr, CString, c_char, c_int},
    io, ptr,
};

use crate::stage::tap::bpf::Instruction;

/// `pcap_t`.
#[repr(C)]
struct Handle {
    _private: [u8; 0],
}

/// `struct bpf_program`, from `<pcap/bpf.h>`.
#[repr(C)]
struct Code {
    len: u32,
    instructions: *mut Raw,
}

/// `struct bpf_insn`, from `<pcap/bpf.h>`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Raw {
    code: u16,
    jt: u8,
    jf: u8,
    k: u32,
}

#[link(name = "pcap", kind = "static", modifiers = "-bundle")]
unsafe extern "C" {
    fn pcap_open_dead(link_type: c_int, snaplen: c_int) -> *mut Handle;
    fn pcap_compile(
        handle: *mut Handle,
        code: *mut Code,
        expression: *const c_char,
        optimize: c_int,
        netmask: u32,
    ) -> c_int;
    fn pcap_geterr(handle: *mut Handle) -> *const c_char;
    fn pcap_freecode(code: *mut Code);
    fn pcap_close(handle: *mut Handle);
    #[cfg(test)]
    fn bpf_filter(program: *const Raw, frame: *const u8, length: u32, captured: u32) -> u32;
    #[cfg(test)]
    fn bpf_validate(program: *const Raw, length: c_int) -> c_int;
}

/// In the place of libpcap's access to D-Bus, which would bring libdbus along: it says that no device is its own.
///
/// The linker takes an archive's member only for a symbol that is not there yet, and these two are all that `pcap-dbus.o` is wanted for.
#[unsafe(no_mangle)]
extern "C" fn dbus_create(_: *const c_char, _: *mut c_char, is_ours: *mut c_int) -> *mut Handle {
    // SAFETY: `pcap_create` passes a pointer to a variable of its own (libpcap, pcap.c). We never call it.
    unsafe { *is_ours = 0 };
    ptr::null_mut()
}

/// As [`dbus_create`]: it finds no device, which is no error.
#[unsafe(no_mangle)]
extern "C" fn dbus_findalldevs(_: *mut Handle, _: *mut c_char) -> c_int {
    0
}

/// Frames are of `DLT_EN10MB`, Ethernet.
const ETHERNET: c_int = 1;
/// What a program returns for a match: more bytes than any frame has.
const WHOLE: c_int = 262_144;
/// `PCAP_NETMASK_UNKNOWN`: `ip broadcast` can't be compiled then, for the ports have no addresses to us.
const NO_NETMASK: u32 = u32::MAX;

/// Compiles a filter expression (pcap-filter(7)) for Ethernet frames.
///
/// # Errors
/// What libpcap finds wrong with it.
pub(crate) fn compile(expression: &str) -> Result<Vec<Instruction>, String> {
    let text = CString::new(expression).map_err(|_| "it contains a zero byte".to_owned())?;
    // SAFETY: numbers only.
    let handle = unsafe { pcap_open_dead(ETHERNET, WHOLE) };
    if handle.is_null() {
        return Err(io::Error::last_os_error().to_string());
    }
    let mut code = Code {
        len: 0,
        instructions: ptr::null_mut(),
    };
    // SAFETY: the handle is open, `code` and the text live through the call. libpcap allocates the instructions.
    let status = unsafe { pcap_compile(handle, &raw mut code, text.as_ptr(), 1, NO_NETMASK) };
    let result = if status == 0 {
        // SAFETY: libpcap says that there are `len` of them; they live until `pcap_freecode`.
        let raw = unsafe { std::slice::from_raw_parts(code.instructions, code.len as usize) };
        let instructions = raw
            .iter()
            .map(|raw| Instruction::from((raw.code, raw.jt, raw.jf, raw.k)))
            .collect();
        // SAFETY: `pcap_compile` has filled it, and it is freed once.
        unsafe { pcap_freecode(&raw mut code) };
        Ok(instructions)
    } else {
        // SAFETY: the message is a string that ends with a zero, inside the handle, which is still open.
        let message = unsafe { CStr::from_ptr(pcap_geterr(handle)) };
        Err(message.to_string_lossy().into_owned())
    };
    // SAFETY: it is open, and closed once.
    unsafe { pcap_close(handle) };
    result
}

/// Runs a program by libpcap's own interpreter; `None` if libpcap refuses it.
#[cfg(test)]
pub(crate) fn reference(program: &[Instruction], frame: &[u8]) -> Option<u32> {
    let raw: Vec<Raw> = program
        .iter()
        .map(|&Instruction { code, jt, jf, k }| Raw { code, jt, jf, k })
        .collect();
    let len = frame.len() as u32;
    // SAFETY: both arrays live through the calls, and their lengths are true; a program runs only if libpcap found it valid.
    unsafe {
        (bpf_validate(raw.as_ptr(), raw.len() as c_int) != 0)
            .then(|| bpf_filter(raw.as_ptr(), frame.as_ptr(), len, len))
    }
}
