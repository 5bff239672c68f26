//! Compiles the programs of `bpf/` with clang.
//!
//! Without clang the build succeeds, and the engine reports the missing programs when a card needs
//! them.

use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

/// Variable that names another clang.
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
            // An error in a program, or a clang without this target.
            for line in String::from_utf8_lossy(&output.stderr).lines() {
                println!("cargo::warning={line}");
            }
            fs::write(&object, []).expect("the build folder can be written");
        }
        Err(_) => {
            // This file does not exist, so cargo checks again at each build, until clang is
            // present.
            println!("cargo::rerun-if-changed=no-clang");
            fs::write(&object, []).expect("the build folder can be written");
        }
    }
}
