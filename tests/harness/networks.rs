//! Network namespaces for real processes: one for each node, joined by bridges in the namespace of this process.
//!
//! Needs root and `ip` (iproute2), and `nft` (nftables) for [`Networks::drop_packets`]; panics where it has not got them.

use std::fs;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

fn try_ip(arguments: &str) -> Result<(), String> {
    let done = Command::new("ip").args(arguments.split_whitespace()).output().map_err(|error| error.to_string())?;
    match done.status.success() {
        true => Ok(()),
        false => Err(format!("ip {arguments}: {}", String::from_utf8_lossy(&done.stderr).trim())),
    }
}

fn ip(arguments: &str) {
    try_ip(arguments).unwrap_or_else(|why| panic!("{why}"));
}

/// Namespaces, bridges and links, named after this process; a drop takes all of them away.
///
/// Each network has a letter: the device inside of a namespace is that letter and `0`.
pub struct Networks {
    name: String,
    /// Second byte of the addresses.
    subnet: u8,
    letters: Vec<char>,
    nodes: u8,
}

impl Networks {
    /// `nodes` namespaces, each with a link to each of these networks.
    pub fn make(nodes: u8, letters: &[char]) -> Self {
        sweep();
        // Those made before may not be gone yet.
        static MADE: AtomicU32 = AtomicU32::new(0);
        let (pid, number) = (std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let subnet = 64 + u8::try_from((pid + number) % 128).expect("below 128");
        let networks = Self { name: format!("hwt{pid}x{number}"), subnet, letters: letters.to_vec(), nodes };
        for node in 1..=nodes {
            ip(&format!("netns add {}", networks.namespace(node)));
        }
        for &net in letters {
            let bridge = format!("{}{net}", networks.name);
            ip(&format!("link add {bridge} type bridge"));
            ip(&format!("addr add {}/24 dev {bridge}", networks.address(net, 0)));
            ip(&format!("link set {bridge} up"));
            for node in 1..=nodes {
                let (outside, namespace) = (networks.link(net, node), networks.namespace(node));
                ip(&format!("link add {outside} type veth peer name {net}0 netns {namespace}"));
                ip(&format!("link set {outside} master {bridge} up"));
                ip(&format!("-n {namespace} addr add {}/24 dev {net}0", networks.address(net, node)));
                ip(&format!("-n {namespace} link set {net}0 up"));
                ip(&format!("-n {namespace} link set lo up"));
            }
        }
        networks
    }

    /// The namespace of a node, counted from 1.
    pub fn namespace(&self, node: u8) -> String {
        format!("{}n{node}", self.name)
    }

    fn link(&self, net: char, node: u8) -> String {
        format!("{}{net}{node}", self.name)
    }

    /// Where a node is in a network; node 0 is this process.
    pub fn address(&self, net: char, node: u8) -> Ipv4Addr {
        let third = self.letters.iter().position(|letter| *letter == net).expect("a letter of these networks");
        Ipv4Addr::new(10, self.subnet, u8::try_from(third + 1).expect("few networks"), 10 + node)
    }

    /// Takes the link of a node to a network down.
    pub fn cut(&self, net: char, node: u8) {
        ip(&format!("link set {} down", self.link(net, node)));
    }

    /// Takes it up again.
    pub fn mend(&self, net: char, node: u8) {
        ip(&format!("link set {} up", self.link(net, node)));
    }

    /// A command that runs in the namespace of a node; the program takes its place, so that the child is the program.
    pub fn command(&self, node: u8, program: &std::path::Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(node)]).arg(program);
        command
    }

    /// Replaces what happens to packets that come in at a node and that it sends: nftables statements for its input and
    /// its output hook, such as `ip saddr 10.1.2.3 drop`.
    pub fn drop_packets(&self, node: u8, input: &[String], output: &[String]) {
        let chain = |hook: &str, rules: &[String]| {
            format!(
                "chain {hook} {{\n type filter hook {hook} priority 0; policy accept;\n {}\n}}\n",
                rules.join("\n ")
            )
        };
        let table = "table inet highwater";
        let text = format!(
            "{table} {{}}\ndelete {table}\n{table} {{\n{}{}}}\n",
            chain("input", input),
            chain("output", output)
        );
        let mut nft = self
            .command(node, std::path::Path::new("nft"))
            .args(["-f", "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("nft (nftables) can be started");
        nft.stdin.take().expect("piped").write_all(text.as_bytes()).expect("nft reads");
        let done = nft.wait_with_output().expect("nft ends");
        assert!(done.status.success(), "nft: {}\n{text}", String::from_utf8_lossy(&done.stderr));
    }
}

impl Drop for Networks {
    fn drop(&mut self) {
        for &net in &self.letters {
            for node in 1..=self.nodes {
                let _ = try_ip(&format!("link del {}", self.link(net, node)));
            }
            let _ = try_ip(&format!("link del {}{net}", self.name));
        }
        for node in 1..=self.nodes {
            let _ = try_ip(&format!("netns del {}", self.namespace(node)));
        }
    }
}

/// Takes away what killed runs left behind.
fn sweep() {
    for device in fs::read_dir("/sys/class/net").into_iter().flatten().flatten() {
        let device = device.file_name().to_string_lossy().into_owned();
        if left_behind(&device) {
            let _ = try_ip(&format!("link del {device}"));
        }
    }
    for namespace in fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        let namespace = namespace.file_name().to_string_lossy().into_owned();
        if left_behind(&namespace) {
            let _ = try_ip(&format!("netns del {namespace}"));
        }
    }
}

/// Named by a process that is gone.
fn left_behind(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("hwt") else { return false };
    let pid: String = rest.chars().take_while(char::is_ascii_digit).collect();
    !pid.is_empty() && !PathBuf::from(format!("/proc/{pid}")).exists()
}
