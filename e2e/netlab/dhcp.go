package netlab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/densityops/oooi/e2e/stack"
)

// Client is a DHCP client program.
type Client string

// The three clients that the lab knows.
const (
	Udhcpc   Client = "udhcpc"
	Dhclient Client = "dhclient"
	Dhcpcd   Client = "dhcpcd"
)

// Lease is what a DHCP client told its script.
type Lease struct {
	Address, Mask, Router, DNS, Server, Seconds string
}

// script is run by the client at each change: it notes the lease, and puts the address on the interface where
// the client leaves that to its script. The clients name the same things differently.
const script = `#!/bin/sh
address=${new_ip_address:-$ip}
[ -n "$address" ] || exit 0
case "${reason:-$1}" in
bound | renew | BOUND | RENEW | REBIND | REBOOT) ;;
*) exit 0 ;;
esac
mask=${new_subnet_mask:-$subnet}
if [ "$CLIENT" != dhcpcd ]; then
	ip address replace "$address/$mask" dev vlan0
	ip route replace default via "${new_routers:-$router}" dev vlan0
fi
cat >"$LEASE.new" <<END
address=$address
mask=$mask
router=${new_routers:-$router}
dns=${new_domain_name_servers:-$dns}
server=${new_dhcp_server_identifier:-$serverid}
seconds=${new_dhcp_lease_time:-$lease}
END
mv "$LEASE.new" "$LEASE"
`

// DHCP lets a client get an address for a host's vlan0, the one asked for if request is not empty, and returns its lease.
func (l *Lab) DHCP(ctx context.Context, h stack.Host, client Client, request string) (Lease, error) {
	folder, scriptFile, leaseFile, err := l.client(client)
	if err != nil {
		return Lease{}, err
	}

	var argv []string
	switch client {
	case Udhcpc:
		argv = []string{"udhcpc", "-f", "-n", "-q", "-t", "10", "-T", "1", "-i", "vlan0", "-s", scriptFile}
		if request != "" {
			argv = append(argv, "-r", request)
		}
	case Dhclient:
		config := "timeout 15;\nretry 1;\ninitial-interval 1;\n"
		if request != "" {
			config += "send dhcp-requested-address " + request + ";\n"
		}
		if err := os.WriteFile(filepath.Join(folder, "dhclient.conf"), []byte(config), 0o600); err != nil {
			return Lease{}, err
		}
		argv = []string{
			"dhclient", "-4", "-1", "-d", "-sf", scriptFile, "-cf", filepath.Join(folder, "dhclient.conf"),
			"-lf", filepath.Join(folder, "leases"), "-pf", filepath.Join(folder, "pid"), "vlan0",
		}
	case Dhcpcd:
		if err := os.WriteFile(filepath.Join(folder, "dhcpcd.conf"), []byte("option subnet_mask, routers, domain_name_servers\n"), 0o600); err != nil {
			return Lease{}, err
		}
		dhcpcd := []string{"dhcpcd", "-4", "-B", "-1", "-t", "15", "-f", filepath.Join(folder, "dhcpcd.conf"), "-c", scriptFile}
		if request != "" {
			dhcpcd = append(dhcpcd, "-r", request)
		}
		// Its folders are fixed, and belong to the machine: it gets empty ones of its own.
		argv = []string{"unshare", "-m", "sh", "-ec", `
			for d in /run/dhcpcd /var/lib/dhcpcd; do [ ! -d $d ] || mount -t tmpfs tmpfs $d; done
			exec "$@"`, "sh"}
		argv = append(append(argv, dhcpcd...), "vlan0")
	}

	p, err := h.Start(folder, string(client), argv...)
	if err != nil {
		return Lease{}, err
	}
	lease, err := awaitLease(ctx, p, leaseFile)
	// The client must not go on: its next message would come at an unknown time. Killed, it releases nothing.
	return lease, errors.Join(err, p.Kill())
}

// Renew lets udhcpc get an address and renew it at once, by unicast, as it would after half the lease time. It
// returns both leases.
func (l *Lab) Renew(ctx context.Context, h stack.Host) (bound, renewed Lease, err error) {
	folder, scriptFile, leaseFile, err := l.client(Udhcpc)
	if err != nil {
		return bound, renewed, err
	}
	p, err := h.Start(folder, string(Udhcpc), "udhcpc", "-f", "-n", "-t", "10", "-T", "1", "-i", "vlan0", "-s", scriptFile)
	if err != nil {
		return bound, renewed, err
	}
	defer func() { err = errors.Join(err, p.Kill()) }()
	if bound, err = awaitLease(ctx, p, leaseFile); err != nil {
		return bound, renewed, err
	}
	if err := os.Remove(leaseFile); err != nil {
		return bound, renewed, err
	}
	if err := p.Signal(syscall.SIGUSR1); err != nil {
		return bound, renewed, err
	}
	renewed, err = awaitLease(ctx, p, leaseFile)
	return bound, renewed, err
}

// client makes a folder for one run of a client, with its script, which writes the lease file.
func (l *Lab) client(c Client) (folder, scriptFile, leaseFile string, err error) {
	if folder, err = os.MkdirTemp(l.Folder, "dhcp-"); err != nil {
		return "", "", "", err
	}
	scriptFile, leaseFile = filepath.Join(folder, "script"), filepath.Join(folder, "lease")
	// The clients clear their script's environment, so the two variables are written into it.
	text := strings.Replace(script, "\n", fmt.Sprintf("\nCLIENT=%s LEASE=%s\n", c, leaseFile), 1)
	return folder, scriptFile, leaseFile, os.WriteFile(scriptFile, []byte(text), 0o700)
}

// awaitLease waits until a client's script has written a lease.
func awaitLease(ctx context.Context, p *stack.Process, file string) (Lease, error) {
	var lease Lease
	err := stack.Until(ctx, "a lease", func(context.Context) error {
		var err error
		if lease, err = readLease(file); err == nil {
			return nil
		}
		select {
		case <-p.Done():
			return stack.Final(errors.New("the DHCP client ended without one"))
		default:
			return err
		}
	})
	if err != nil {
		return lease, fmt.Errorf("%w\n%s", err, p.Tail(20))
	}
	return lease, nil
}

func readLease(file string) (Lease, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return Lease{}, err
	}
	var l Lease
	fields := map[string]*string{
		"address": &l.Address, "mask": &l.Mask, "router": &l.Router, "dns": &l.DNS, "server": &l.Server, "seconds": &l.Seconds,
	}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if field := fields[key]; field != nil {
			*field = value
		}
	}
	return l, nil
}
