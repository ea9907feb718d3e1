package appsingress

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"time"

	clientcmdv1 "k8s.io/client-go/tools/clientcmd/api/v1"
	"sigs.k8s.io/yaml"
)

// kubeconfigKey is the key of the kubeconfig in the Secret, as HyperShift writes it.
const kubeconfigKey = "kubeconfig"

// access is what a kubeconfig says about one API server: its name and how to prove who one is. Where the server
// is, it does not say.
type access struct {
	// server is https, with the name that the certificate must have, unless tlsName is another.
	server  *url.URL
	tlsName string
	roots   *x509.CertPool

	certificates       []tls.Certificate
	token              string
	username, password string

	// credential is what the server is shown: "token", "client certificate", "password".
	credential string
	// expires is when that is over; zero: it does not say.
	expires time.Time
}

// parseKubeconfig reads the current context of a kubeconfig. It runs nothing and reads no file: what would need that is refused,
// and so is whatever weakens TLS or leads elsewhere. Its errors hold nothing secret.
func parseKubeconfig(raw []byte) (*access, error) {
	var config clientcmdv1.Config
	if err := yaml.UnmarshalStrict(raw, &config); err != nil {
		return nil, fmt.Errorf("is no kubeconfig: %s", withoutValues(err))
	}
	if config.CurrentContext == "" {
		return nil, errors.New("has no current-context")
	}
	context, err := named("context", config.CurrentContext, config.Contexts, func(c clientcmdv1.NamedContext) string { return c.Name })
	if err != nil {
		return nil, err
	}
	cluster, err := named("cluster", context.Context.Cluster, config.Clusters, func(c clientcmdv1.NamedCluster) string { return c.Name })
	if err != nil {
		return nil, err
	}
	user, err := named("user", context.Context.AuthInfo, config.AuthInfos, func(c clientcmdv1.NamedAuthInfo) string { return c.Name })
	if err != nil {
		return nil, err
	}
	a := &access{}
	if err := a.readCluster(&cluster.Cluster); err != nil {
		return nil, fmt.Errorf("cluster %q: %w", cut(cluster.Name), err)
	}
	if err := a.readUser(&user.AuthInfo); err != nil {
		return nil, fmt.Errorf("user %q: %w", cut(user.Name), err)
	}
	return a, nil
}

// named finds the one entry of a name.
func named[T any](what, name string, entries []T, nameOf func(T) string) (T, error) {
	var found []T
	for _, entry := range entries {
		if nameOf(entry) == name {
			found = append(found, entry)
		}
	}
	switch len(found) {
	case 0:
		var none T
		return none, fmt.Errorf("has no %s %q", what, cut(name))
	case 1:
		return found[0], nil
	}
	var none T
	return none, fmt.Errorf("has %d times the %s %q", len(found), what, cut(name))
}

func (a *access) readCluster(c *clientcmdv1.Cluster) error {
	switch {
	case c.InsecureSkipTLSVerify:
		return errors.New("insecure-skip-tls-verify is refused: give the certificate authority in certificate-authority-data")
	case c.ProxyURL != "":
		return errors.New("proxy-url is refused: the API server is reached inside the management cluster")
	case c.CertificateAuthority != "":
		return errors.New("certificate-authority names a file, and files are not read: give certificate-authority-data")
	case len(c.CertificateAuthorityData) == 0:
		return errors.New("has no certificate-authority-data")
	}
	server, err := url.Parse(c.Server)
	if err != nil || server.Hostname() == "" {
		return errors.New("server is no URL: write https://name:port")
	}
	if server.Scheme != "https" {
		return fmt.Errorf("server is a URL of %q, and only https is used", cut(server.Scheme))
	}
	if server.User != nil || server.RawQuery != "" || server.Fragment != "" {
		return errors.New("server has more than a name, a port and a path")
	}
	a.server, a.tlsName, a.roots = server, c.TLSServerName, x509.NewCertPool()
	if a.tlsName == "" {
		a.tlsName = server.Hostname()
	}
	n := 0
	for rest := c.CertificateAuthorityData; ; n++ {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return fmt.Errorf("certificate-authority-data holds a %q", cut(block.Type))
		}
		root, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return fmt.Errorf("certificate-authority-data: %w", err)
		}
		a.roots.AddCert(root)
	}
	if n == 0 {
		return errors.New("certificate-authority-data holds no certificate in PEM")
	}
	return nil
}

func (a *access) readUser(u *clientcmdv1.AuthInfo) error {
	switch {
	case u.Exec != nil:
		return errors.New("exec is refused: no program is run for a kubeconfig; give a token or a client certificate")
	case u.AuthProvider != nil:
		return errors.New("auth-provider is refused: no plugin is run for a kubeconfig; give a token or a client certificate")
	case u.TokenFile != "":
		return errors.New("tokenFile names a file, and files are not read: give token")
	case u.ClientCertificate != "" || u.ClientKey != "":
		return errors.New("client-certificate and client-key name files, and files are not read: give client-certificate-data and client-key-data")
	case u.Impersonate != "" || u.ImpersonateUID != "" || len(u.ImpersonateGroups) > 0 || len(u.ImpersonateUserExtra) > 0:
		return errors.New("as is refused: give the credentials of the user itself")
	case u.Token != "" && u.Username != "":
		return errors.New("has a token and a username: give one of them")
	case u.Username == "" && u.Password != "":
		return errors.New("has a password and no username")
	}
	if len(u.ClientCertificateData) > 0 || len(u.ClientKeyData) > 0 {
		pair, err := tls.X509KeyPair(u.ClientCertificateData, u.ClientKeyData)
		if err != nil {
			return fmt.Errorf("client-certificate-data and client-key-data: %w", err)
		}
		a.certificates, a.credential, a.expires = []tls.Certificate{pair}, "client certificate", pair.Leaf.NotAfter
	}
	switch {
	case u.Token != "":
		if strings.ContainsFunc(u.Token, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return errors.New("token holds characters that no token has")
		}
		a.token, a.credential, a.expires = u.Token, "token", tokenExpiry(u.Token)
	case u.Username != "":
		a.username, a.password, a.credential, a.expires = u.Username, u.Password, "password", time.Time{}
	case a.certificates == nil:
		return errors.New("has no credentials: give a token or a client certificate")
	}
	return nil
}

// tokenExpiry reads when a JSON web token is over (RFC 7519, section 4.1.4), for messages only; zero: it does not say.
func tokenExpiry(token string) time.Time {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return time.Time{}
	}
	claims, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return time.Time{}
	}
	var known struct {
		Expires int64 `json:"exp"`
	}
	if err := json.Unmarshal(claims, &known); err != nil || known.Expires <= 0 {
		return time.Time{}
	}
	return time.Unix(known.Expires, 0)
}

// quotedValues are those that the parser of YAML cites.
var quotedValues = regexp.MustCompile("(?s)`.*`|map\\[.*\\]|\"[^\"]{41,}\"")

// withoutValues is what a parser says, without what it found: that may be secret.
func withoutValues(err error) string { return cut(quotedValues.ReplaceAllString(err.Error(), "…")) }
