//! A small stack for the examples in WebAssembly: then all of their memory is one page, which is cleared after each call
//! without a system call.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "wasm32") {
        println!("cargo::rustc-link-arg=-zstack-size=32768");
    }
}
