//! Compiles the programs of `bpf/` with clang.
//!
//! Without clang the build succeeds: the engine then has no programs, and says so when a card asks
//! for it.

use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

/// Another clang than the one in the path.
const CLANG: &str = "PICNIC_CLANG";

fn main() {
    println!("cargo::rerun-if-changed=bpf");
    println!("cargo::rerun-if-env-changed={CLANG}");
    compile("card");
    compile("work");
}

fn compile(name: &str) {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo says where to build"));
    let object = out.join(format!("{name}.bpf.o"));
    let clang = env::var_os(CLANG).unwrap_or_else(|| "clang".into());
    let order = match env::var("CARGO_CFG_TARGET_ENDIAN").as_deref() {
        Ok("big") => "bpfeb",
        _ => "bpfel",
    };
    let built = Command::new(&clang)
        .args(["-O2", "-g", "-Wall", "-Wextra", "-Werror", "-mcpu=v3", "-target", order, "-c"])
        .args([&format!("bpf/{name}.bpf.c"), "-o"])
        .arg(&object)
        .output();
    match built {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            // A mistake in a program, or a clang without this target.
            for line in String::from_utf8_lossy(&output.stderr).lines() {
                println!("cargo::warning={line}");
            }
            fs::write(&object, []).expect("the build folder can be written");
        }
        Err(_) => {
            // There is no such file: cargo looks again at each build, until clang is there.
            println!("cargo::rerun-if-changed=no-clang");
            fs::write(&object, []).expect("the build folder can be written");
        }
    }
}
