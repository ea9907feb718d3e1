package controlplane

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// AdminConfig is a client configuration of the admin, who may do everything, without a rate limit.
func (c *ControlPlane) AdminConfig() *rest.Config { return rest.CopyConfig(c.admin) }

// AdminKubeconfig writes a kubeconfig file of the admin and returns its path.
func (c *ControlPlane) AdminKubeconfig() (string, error) {
	return c.kubeconfigOf(AdminUser, "system:masters")
}

// ServiceAccountKubeconfig writes a kubeconfig file with a token of a ServiceAccount, good for an hour, and returns its
// path. The ServiceAccount must be there.
func (c *ControlPlane) ServiceAccountKubeconfig(ctx context.Context, namespace, name string) (string, error) {
	token, err := c.token(ctx, namespace, name)
	if err != nil {
		return "", err
	}
	return c.writeKubeconfig(namespace+"-"+name, namespace, &clientcmdapi.AuthInfo{Token: token})
}

// ServiceAccountConfig is a client configuration with a token of a ServiceAccount, good for an hour.
func (c *ControlPlane) ServiceAccountConfig(ctx context.Context, namespace, name string) (*rest.Config, error) {
	token, err := c.token(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	return &rest.Config{Host: c.url, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAData: c.authority.pem}, QPS: -1}, nil
}

// token asks the API server for a token of a ServiceAccount (TokenRequest).
func (c *ControlPlane) token(ctx context.Context, namespace, name string) (string, error) {
	request := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
		"metadata": map[string]any{"name": name},
		"spec":     map[string]any{"expirationSeconds": int64(3600)},
	}}
	accounts := schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}
	answer, err := c.Dynamic.Resource(accounts).Namespace(namespace).Create(ctx, request, metav1.CreateOptions{}, "token")
	if err != nil {
		return "", fmt.Errorf("token of ServiceAccount %s/%s: %w", namespace, name, err)
	}
	token, _, err := unstructured.NestedString(answer.Object, "status", "token")
	if err == nil && token == "" {
		err = errors.New("the answer holds none")
	}
	if err != nil {
		return "", fmt.Errorf("token of ServiceAccount %s/%s: %w", namespace, name, err)
	}
	return token, nil
}

// Credentials are what a kubeconfig proves its user with.
type Credentials int

// Credentials of a kubeconfig.
const (
	// ClientCertificate is one that lasts for a day.
	ClientCertificate Credentials = iota
	// ExpiredCertificate is a client certificate whose time is over: the API server answers 401.
	ExpiredCertificate
	// BearerToken is the token of a ServiceAccount, good for an hour.
	BearerToken
	// UnknownToken is a token that nobody issued: the API server answers 401.
	UnknownToken
)

// KubeconfigFor is the text of a kubeconfig whose server is the URL, which may lead anywhere: the admin's, or with BearerToken
// that of the ServiceAccount, given as namespace and name.
func (c *ControlPlane) KubeconfigFor(ctx context.Context, server string, credentials Credentials, account ...string) ([]byte, error) {
	user := &clientcmdapi.AuthInfo{}
	switch credentials {
	case ClientCertificate, ExpiredCertificate:
		end := time.Now().Add(24 * time.Hour)
		if credentials == ExpiredCertificate {
			end = time.Now().Add(-time.Minute)
		}
		client, err := c.authority.sign(end, AdminUser, "system:masters")
		if err != nil {
			return nil, err
		}
		user.ClientCertificateData, user.ClientKeyData = client.cert, client.key
	case BearerToken:
		if len(account) != 2 {
			return nil, errors.New("a token is one of a ServiceAccount, given as namespace and name")
		}
		token, err := c.token(ctx, account[0], account[1])
		if err != nil {
			return nil, err
		}
		user.Token = token
	case UnknownToken:
		user.Token = "nobody-issued-this"
	default:
		return nil, fmt.Errorf("no credentials %d", credentials)
	}
	return clientcmd.Write(*c.kubeconfig(server, AdminUser, "", user))
}

// kubeconfigOf writes a kubeconfig file of a user with a certificate.
func (c *ControlPlane) kubeconfigOf(user string, groups ...string) (string, error) {
	client, err := c.authority.issue(user, groups...)
	if err != nil {
		return "", err
	}
	return c.writeKubeconfig(user, "", &clientcmdapi.AuthInfo{ClientCertificateData: client.cert, ClientKeyData: client.key})
}

func (c *ControlPlane) writeKubeconfig(name, namespace string, user *clientcmdapi.AuthInfo) (string, error) {
	config := c.kubeconfig(c.url, name, namespace, user)
	path := filepath.Join(c.folder, name+".kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return "", fmt.Errorf("kubeconfig of %s: %w", name, err)
	}
	return path, nil
}

func (c *ControlPlane) kubeconfig(server, name, namespace string, user *clientcmdapi.AuthInfo) *clientcmdapi.Config {
	config := clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: c.authority.pem}
	config.AuthInfos[name] = user
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: name, Namespace: namespace}
	config.CurrentContext = "test"
	return config
}
