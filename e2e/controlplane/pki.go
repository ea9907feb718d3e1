package controlplane

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// authority signs the certificates of one control plane, for servers and clients.
type authority struct {
	folder string
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
	// pem is its certificate.
	pem []byte
	// addresses and names are those of servers.
	addresses []net.IP
	names     []string
}

// pair is a certificate and its key, in PEM, and the files that hold them.
type pair struct {
	cert, key         []byte
	certFile, keyFile string
}

// newAuthority makes an authority that lasts for a day and keeps everything in a folder.
func newAuthority(folder string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "control plane of a test"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("making a CA: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	a := &authority{folder: folder, cert: cert, key: key, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
	return a, os.WriteFile(a.file(), a.pem, 0o600)
}

// file holds the certificate of the authority.
func (a *authority) file() string { return filepath.Join(a.folder, "ca.crt") }

// issue makes a certificate for the addresses of servers: a server's, and a client's of that user and those groups. It
// lasts for a day, and is in files.
func (a *authority) issue(user string, groups ...string) (pair, error) {
	p, err := a.sign(time.Now().Add(24*time.Hour), user, groups...)
	if err != nil {
		return pair{}, err
	}
	p.certFile, p.keyFile = filepath.Join(a.folder, user+".crt"), filepath.Join(a.folder, user+".key")
	if err := os.WriteFile(p.certFile, p.cert, 0o600); err != nil {
		return pair{}, err
	}
	return p, os.WriteFile(p.keyFile, p.key, 0o600)
}

// sign makes such a certificate that ends at a time, which may be over. It is in no file.
func (a *authority) sign(end time.Time, user string, groups ...string) (pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair{}, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return pair{}, err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: user, Organization: groups},
		NotBefore:    end.Add(-25 * time.Hour),
		NotAfter:     end,
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames:     a.names,
		IPAddresses:  a.addresses,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return pair{}, fmt.Errorf("certificate of %s: %w", user, err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return pair{}, err
	}
	return pair{
		cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}),
	}, nil
}
