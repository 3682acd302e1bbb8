import java.io.File;
import java.net.ServerSocket;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/** Dfs PORT DIRECTORY READY: HDFS in one process, until it is killed; listens on the port READY once it takes files. */
public class Dfs {
  public static void main(String[] arguments) throws Exception {
    MiniDFSCluster.Builder builder = new MiniDFSCluster.Builder(new Configuration(), new File(arguments[1]));
    MiniDFSCluster cluster = builder.nameNodePort(Integer.parseInt(arguments[0])).numDataNodes(1).build();
    cluster.waitActive();
    new ServerSocket(Integer.parseInt(arguments[2]));
    Thread.sleep(Long.MAX_VALUE);
  }
}
