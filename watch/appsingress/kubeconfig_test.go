package appsingress

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// selfSigned is a certificate with its key, in PEM, which is its own authority.
func selfSigned(t testing.TB, until time.Time, names ...string) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, DNSNames: names, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: until.Add(-time.Hour), NotAfter: until, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}

// secretToken is what must be in no error.
const secretToken = "s3cr3t-token"

// sample is a kubeconfig with these lines for the cluster and for the user.
func sample(cluster, user string) string {
	indent := func(text string) string { return "\n    " + strings.ReplaceAll(text, "\n", "\n    ") }
	return "apiVersion: v1\nkind: Config\ncurrent-context: admin\ncontexts:\n- name: admin\n  context: {cluster: c, user: u}\n" +
		"clusters:\n- name: c\n  cluster:" + indent(cluster) + "\nusers:\n- name: u\n  user:" + indent(user) + "\n"
}

// TestKubeconfigs that are refused, each with the error it must give, and those that are not.
func TestKubeconfigs(t *testing.T) {
	t.Parallel()
	until := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	cert, key := selfSigned(t, until, "api.a.example.com")
	ca := "certificate-authority-data: " + base64.StdEncoding.EncodeToString(cert)
	pair := "client-certificate-data: " + base64.StdEncoding.EncodeToString(cert) + "\nclient-key-data: " + base64.StdEncoding.EncodeToString(key)
	cluster := "server: https://api.a.example.com:443\n" + ca
	token := "token: " + secretToken
	marker := filepath.Join(t.TempDir(), "ran")
	for _, test := range []struct{ name, kubeconfig, err string }{
		{"token", sample(cluster, token), ""},
		{"client certificate", sample(cluster, pair), ""},
		{"password", sample(cluster, "username: me\npassword: "+secretToken), ""},
		{"TLS name", sample(cluster+"\ntls-server-name: other.example.com", token), ""},
		{"empty", "", "has no current-context"},
		{"no YAML", "{" + secretToken, "is no kubeconfig: error converting YAML to JSON: yaml: line 1: did not find expected ',' or '}'"},
		{"text", secretToken, "is no kubeconfig: error unmarshaling JSON: while decoding JSON: json: cannot unmarshal string into Go value of type v1.Config"},
		{"unknown field", sample(cluster+"\ninsecure: true", token), `is no kubeconfig: error unmarshaling JSON: while decoding JSON: json: unknown field "insecure"`},
		{"no such context", strings.Replace(sample(cluster, token), "current-context: admin", "current-context: other", 1), `has no context "other"`},
		{"no such cluster", strings.Replace(sample(cluster, token), "cluster: c,", "cluster: d,", 1), `has no cluster "d"`},
		{"no such user", strings.Replace(sample(cluster, token), "user: u}", "user: v}", 1), `has no user "v"`},
		{"two users", sample(cluster, token) + "- name: u\n  user: {}\n", `has 2 times the user "u"`},
		{"insecure", sample(cluster+"\ninsecure-skip-tls-verify: true", token), `cluster "c": insecure-skip-tls-verify is refused: give the certificate authority in certificate-authority-data`},
		{"proxy", sample(cluster+"\nproxy-url: http://192.0.2.1", token), `cluster "c": proxy-url is refused: the API server is reached inside the management cluster`},
		{"CA file", sample("server: https://a\ncertificate-authority: /etc/hostname", token), `cluster "c": certificate-authority names a file, and files are not read: give certificate-authority-data`},
		{"no CA", sample("server: https://a", token), `cluster "c": has no certificate-authority-data`},
		{"CA of nonsense", sample("server: https://a\ncertificate-authority-data: bm8=", token), `cluster "c": certificate-authority-data holds no certificate in PEM`},
		{"CA that is a key", sample("server: https://a\ncertificate-authority-data: "+base64.StdEncoding.EncodeToString(key), token), `cluster "c": certificate-authority-data holds a "PRIVATE KEY"`},
		{"http", sample("server: http://a\n"+ca, token), `cluster "c": server is a URL of "http", and only https is used`},
		{"no server", sample(ca, token), `cluster "c": server is no URL: write https://name:port`},
		{"credentials in the URL", sample("server: https://u:"+secretToken+"@a\n"+ca, token), `cluster "c": server has more than a name, a port and a path`},
		{"exec", sample(cluster, "exec: {apiVersion: client.authentication.k8s.io/v1, command: touch, args: ["+marker+"], interactiveMode: Never}"), `user "u": exec is refused: no program is run for a kubeconfig; give a token or a client certificate`},
		{"auth-provider", sample(cluster, "auth-provider: {name: oidc}"), `user "u": auth-provider is refused: no plugin is run for a kubeconfig; give a token or a client certificate`},
		{"token file", sample(cluster, token+"\ntokenFile: /etc/hostname"), `user "u": tokenFile names a file, and files are not read: give token`},
		{"certificate file", sample(cluster, "client-certificate: /etc/hostname\nclient-key: /etc/hostname"), `user "u": client-certificate and client-key name files, and files are not read: give client-certificate-data and client-key-data`},
		{"impersonation", sample(cluster, token+"\nas: admin"), `user "u": as is refused: give the credentials of the user itself`},
		{"token and username", sample(cluster, token+"\nusername: me"), `user "u": has a token and a username: give one of them`},
		{"password alone", sample(cluster, "password: "+secretToken), `user "u": has a password and no username`},
		{"nothing", sample(cluster, "{}"), `user "u": has no credentials: give a token or a client certificate`},
		{"two lines of token", sample(cluster, `token: "`+secretToken+`\nX-Evil: 1"`), `user "u": token holds characters that no token has`},
		{"certificate without key", sample(cluster, "client-certificate-data: "+base64.StdEncoding.EncodeToString(cert)), `user "u": client-certificate-data and client-key-data: tls: failed to find any PEM data in key input`},
	} {
		a, err := parseKubeconfig([]byte(test.kubeconfig))
		switch {
		case test.err == "" && err != nil:
			t.Errorf("%s: %v", test.name, err)
		case test.err == "" && a.server.Host != "api.a.example.com:443":
			t.Errorf("%s: %+v", test.name, a)
		case test.err != "" && (err == nil || err.Error() != test.err):
			t.Errorf("%s: the error is\n%v, and should be\n%s", test.name, err, test.err)
		case err != nil && strings.Contains(err.Error(), secretToken):
			t.Errorf("%s: the error holds the secret: %v", test.name, err)
		}
	}
	if _, err := os.Stat(marker); err == nil {
		t.Error("the kubeconfig's program was run")
	}
	a, err := parseKubeconfig([]byte(sample(cluster+"\ntls-server-name: other.example.com", pair)))
	if err != nil || a.tlsName != "other.example.com" || !a.expires.Equal(until) || a.credential != "client certificate" {
		t.Errorf("%+v, %v", a, err)
	}
	claims := base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"exp":%d}`, until.Unix()))
	if a, err = parseKubeconfig([]byte(sample(cluster, "token: e30."+claims+".e30"))); err != nil || a.tlsName != "api.a.example.com" || !a.expires.Equal(until) || a.credential != "token" {
		t.Errorf("%+v, %v", a, err)
	}
}

// FuzzKubeconfig: whatever is in a Secret, nothing panics or runs, and what is accepted has TLS, an authority and credentials that
// are in the kubeconfig itself.
func FuzzKubeconfig(f *testing.F) {
	cert, key := selfSigned(f, time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC), "a")
	marker := filepath.Join(f.TempDir(), "ran")
	cluster := "server: https://a\ncertificate-authority-data: " + base64.StdEncoding.EncodeToString(cert)
	for _, seed := range []string{
		sample(cluster, "token: abc"),
		sample(cluster, "client-certificate-data: "+base64.StdEncoding.EncodeToString(cert)+"\nclient-key-data: "+base64.StdEncoding.EncodeToString(key)),
		sample(cluster, "exec: {apiVersion: client.authentication.k8s.io/v1, command: touch, args: ["+marker+"], interactiveMode: Never}"),
		sample(cluster, "username: a\npassword: b"),
		sample(cluster+"\ninsecure-skip-tls-verify: true", "tokenFile: /etc/hostname"),
		sample("server: http://a", "{}"), "", "a: &a [*a]", "{}", "[]",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		a, err := parseKubeconfig(raw)
		if _, statErr := os.Stat(marker); statErr == nil {
			t.Fatal("a program was run")
		}
		if err != nil {
			return
		}
		if a.server.Scheme != "https" || a.tlsName == "" || a.roots == nil || a.token == "" && a.username == "" && len(a.certificates) == 0 {
			t.Fatalf("accepted: %+v", a)
		}
		h, err := connect(a, []string{"127.0.0.1"}, 1, make(chan struct{}, 1), func() {})
		if err != nil {
			return
		}
		h.close()
	})
}
