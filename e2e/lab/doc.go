// Command lab is `make lab`: the example of two hosted clusters on one VLAN, on a real bridge between network
// namespaces, with the example's own addresses. Workers get their addresses by DHCP. The program prints what
// happened and what to try, waits for Ctrl-C, and leaves nothing behind.
//
// It needs root. Without it, it starts itself again in a user namespace, where the kernel allows that.
package main
